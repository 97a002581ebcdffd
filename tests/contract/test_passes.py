"""Every normalisation and clean-up pass, on every form of export: a second run changes nothing, outputs stay."""

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfold.folding.open_model import GraphForm
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult, Pipeline
from onnxfold.passes.join.join import COMMON_FORM
from onnxfold.passes.normalize.pipelines import NORMALIZE, clean_up
from onnxfold.passes.normalize.unneeded import EliminateIdentity, ShareInitializers, UnshareInitializers
from onnxfold.passes.seams.tables import SplitLookups
from onnxfold.passes.seams.tied_tables import SplitTables
from testing.compare import relative_difference
from testing.models import ALL_MODELS, random_input, run
from testing.rule_models.layers import with_initial_states
from testing.rule_models.table import RULE_MODELS
from tests.attention_forms import ATTENTION_FORMS
from tests.export_forms import FORMS, expanded_factors, frozen_norms

CLEAN_UP = clean_up({})
SEAMS = GraphForm(tables=True, streams=True, queries=True).seams()

PASSES: dict[str, Pass] = {
    **{p.name: p for p in (*NORMALIZE.passes, *SEAMS.passes, *CLEAN_UP.passes)},
    "SplitLookups": SplitLookups(20, 45),
    "SplitTables": SplitTables(2, 90),
    **{p.name: p for p in COMMON_FORM.passes},
    "NORMALIZE": NORMALIZE,
    "CLEAN_UP": CLEAN_UP,
}

#: What each pass is for: it has to do something on these forms.
WORKS_ON = {
    "InlineFunctions": ["model_functions"],
    "LiftConstants": ["constant_nodes", "listed_weights"],
    "EliminateIdentity": ["identity_routed", "with_dropout"],
    "FoldConstants": ["computed_weights", "identity_routed"],
    "FreezeReshapes": ["computed_reshapes"],
    "DropExpand": ["expanded_factors"],
    "MergeAffine": ["frozen_norms"],
    "DropZeroBias": ["with_dropout"],
    "TakeBranches": ["decided_branches"],
    "DropZeroStates": ["zero_states"],
    "RemoveUnused": ["unused_parts"],
    "UnshareInitializers": ["shared_vectors"],
    "ShufflesToGather": ["Shuffle"],
    "WriteSplitSizes": ["Split-equal-12", "Split-equal-17", "Split-equal-18"],
    "SequencesToSplit": ["sequences"],
    "LearnShapes": ["lengths_by_range"],
    "PackedToSlices": ["packed_attention"],
    "ViewsToTranspose": ["keys_turned_by_views", "heads_of_multi_head_attention", "turned_beside_ones"],
    "RepeatsToGather": ["repeated_heads"],
    "HeadsToAxis": ["normed_heads"],
    "HeadsFromBatch": ["heads_in_batch", "heads_in_batch_behind_positions"],
    "FactorTables": ["table_of_words"],
    "FactorTies": ["tied_words"],
    "SplitProjections": ["packed_projections"],
    "FactorQueries": ["split_projections"],
    "MeansToPooling": ["ReduceMean-18-keepdims0"],
    "ViewsToFlatten": ["Squeeze-Unsqueeze-13"],
    "SplitLookups": ["table_of_words"],
    "SplitTables": ["rare_words"],
    "ShareInitializers": [],  # only after UnshareInitializers, see below
}


def _base() -> onnx.ModelProto:
    return ALL_MODELS["flatten_conv"](0)


def _shared_vectors() -> onnx.ModelProto:
    """Two BatchNormalizations have the same scale and shift."""
    model = ALL_MODELS["residual"](0)
    for node in model.graph.node:
        if node.name == "bn_1":
            node.input[1:3] = ["bn_0_gamma", "bn_0_beta"]
    return model


def _partly_output() -> onnx.ModelProto:
    """A constant Split, one half of which is an output."""
    model = _base()
    model.graph.initializer.append(numpy_helper.from_array(np.arange(10, dtype=np.float32), "ten"))
    model.graph.node.insert(0, helper.make_node("Split", ["ten"], ["first", "second"], axis=0))
    y = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["logits" if o == y else o for o in node.output]
    model.graph.node.append(helper.make_node("Add", ["logits", "first"], [y]))
    model.graph.output.append(helper.make_tensor_value_info("second", onnx.TensorProto.FLOAT, [5]))
    model.opset_import[0].version = 13
    return model


def _identity_outputs() -> onnx.ModelProto:
    """Identities write graph outputs, one of them a weight, one the input."""
    model = _base()
    for name, source in (("same_x", "x"), ("same_weight", "gemm_1_b"), ("same_relu", "relu_0_out")):
        model.graph.node.append(helper.make_node("Identity", [source], [name]))
        model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _shape_outputs() -> onnx.ModelProto:
    """What constant folding could compute is an output: the shape of a weight, and a sum of constants."""
    model = _base()
    nodes = [
        helper.make_node("Shape", ["gemm_1_w"], ["sizes"]),
        helper.make_node("Add", ["gemm_1_b", "gemm_1_b"], ["twice"]),
        helper.make_node("Neg", ["twice"], ["negative"]),
    ]
    model.graph.node.extend(nodes)
    for name, kind in (("sizes", 7), ("twice", 1), ("negative", 1)):
        model.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _sequences() -> onnx.ModelProto:
    """A convolution's channels cut into a sequence of halves, as the unoptimised dynamo exporter writes chunk."""
    model = _base()
    first = next(node for node in model.graph.node if node.op_type == "Relu")
    channels = next(t for t in model.graph.initializer if t.name == model.graph.node[0].input[1]).dims[0]
    whole, first.output[0] = first.output[0], "uncut"
    sizes = numpy_helper.from_array(np.array([channels // 2, channels - channels // 2], np.int64), "halves")
    model.graph.initializer.append(sizes)
    model.graph.initializer.extend(numpy_helper.from_array(np.array(i, np.int64), f"place_{i}") for i in (0, 1))
    nodes = [
        helper.make_node("SplitToSequence", ["uncut", "halves"], ["parts"], "cut", axis=1),
        helper.make_node("SequenceAt", ["parts", "place_1"], ["second"], "take_second"),
        helper.make_node("SequenceAt", ["parts", "place_0"], ["first"], "take_first"),
        helper.make_node("Concat", ["second", "first"], [whole], "swap", axis=1),
    ]
    position = list(model.graph.node).index(first) + 1
    for offset, node in enumerate(nodes):
        model.graph.node.insert(position + offset, node)
    return model


def _subgraph() -> onnx.ModelProto:
    """An If whose branches read an Identity's result, a Constant, and a weight of the main graph by name."""
    model = _base()
    y = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["logits" if o == y else o for o in node.output]
    branches = []
    for name, read in (("then", "routed"), ("else", "offset")):
        body = [helper.make_node("Add", ["logits", read], [f"{name}_out"])]
        outputs = [helper.make_tensor_value_info(f"{name}_out", onnx.TensorProto.FLOAT, None)]
        branches.append(helper.make_graph(body, name, [], outputs))
    offset = numpy_helper.from_array(np.full(5, 0.5, np.float32), "offset")
    condition = numpy_helper.from_array(np.array(0.0, np.float32), "threshold")
    model.graph.initializer.extend([offset, condition])
    model.graph.node.extend(
        [
            helper.make_node("Identity", ["offset"], ["routed"]),
            helper.make_node("ReduceSum", ["logits"], ["total"], keepdims=0),
            helper.make_node("Greater", ["total", "threshold"], ["positive"]),
            helper.make_node("If", ["positive"], [y], then_branch=branches[0], else_branch=branches[1]),
        ]
    )
    return model


def _zero_states() -> onnx.ModelProto:
    """An LSTM whose initial states are zeros for the batch at hand, as torch writes them."""
    return with_initial_states(RULE_MODELS["LSTM"](), 0.0)


def _table_of_words() -> onnx.ModelProto:
    """Rows of a table of 60 words, looked up by the class of a sample, and added to its scores."""
    model = _base()
    y = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["logits" if o == y else o for o in node.output]
    rows = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(rows, "words"))
    nodes = [
        helper.make_node("ArgMax", ["logits"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["words", "best"], ["word"], "look_up"),
        helper.make_node("Add", ["logits", "word"], [y]),
    ]
    model.graph.node.extend(nodes)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _tied_words() -> onnx.ModelProto:
    """Rows of a table of 60 words, looked up by the class of a sample, normed, and scored by the table again."""
    model = _base()
    y = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["logits" if o == y else o for o in node.output]
    random = np.random.default_rng(0)
    weights = [
        ("words", random.standard_normal((60, 5))),
        ("scale", np.ones(5)),
        ("last", random.standard_normal((60, 5))),
    ]
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights)
    nodes = [
        helper.make_node("ArgMax", ["logits"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["words", "best"], ["word"], "look_up"),
        helper.make_node("LayerNormalization", ["word", "scale"], ["normed"]),
        helper.make_node("Gemm", ["normed", "words"], ["scores"], transB=1),
        helper.make_node("MatMul", ["scores", "last"], [y]),
    ]
    model.graph.node.extend(nodes)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _rare_words() -> onnx.ModelProto:
    """The same with a table of a hundred words, which scores read turned."""
    model = _tied_words()
    rows = np.random.default_rng(1).standard_normal((2, 100, 5)).astype(np.float32)
    for weight in model.graph.initializer:
        if weight.name in ("words", "last"):
            weight.CopyFrom(numpy_helper.from_array(rows[int(weight.name == "last")], weight.name))
    scores = next(node for node in model.graph.node if node.op_type == "Gemm" and node.output[0] == "scores")
    scores.CopyFrom(helper.make_node("MatMul", ["normed", "turned"], ["scores"]))
    model.graph.node.insert(0, helper.make_node("Transpose", ["words"], ["turned"], perm=[1, 0]))
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _split_words() -> onnx.ModelProto:
    """The same with its table split, rare words in an identity matrix as basis."""
    view = load(_rare_words())
    SplitTables(2, 90)(view)
    return onnx.shape_inference.infer_shapes(to_model(view), data_prop=True)


def _split_lookups() -> onnx.ModelProto:
    """A table of words, of which a few are looked up by themselves."""
    view = load(_table_of_words())
    SplitLookups(20, 45)(view)
    return onnx.shape_inference.infer_shapes(to_model(view), data_prop=True)


_FORMS = (
    _table_of_words,
    _tied_words,
    _rare_words,
    _split_words,
    _split_lookups,
    _shared_vectors,
    _identity_outputs,
    _shape_outputs,
    _partly_output,
    _sequences,
    _subgraph,
    _zero_states,
)

_RULE_FORMS = (
    "Shuffle", "Split-equal-12", "Split-equal-17", "Split-equal-18", "ReduceMean-18-keepdims0", "Squeeze-Unsqueeze-13",
)  # fmt: skip

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{name: (lambda form=form: form(_base())) for name, form in FORMS.items()},
    **{f.__name__[1:]: f for f in _FORMS},
    **ATTENTION_FORMS,
    **{name: RULE_MODELS[name] for name in _RULE_FORMS},
    "all_forms": lambda: FORMS["constant_nodes"](FORMS["with_dropout"](FORMS["computed_reshapes"](_base()))),
    "dense_net": lambda: ALL_MODELS["dense_net"](0),
    "expanded_factors": lambda: expanded_factors(_base()),
    "frozen_norms": lambda: frozen_norms(_base()),
}


def _interface(model: onnx.ModelProto) -> tuple[list[str], list[bytes]]:
    weights = {t.name for t in model.graph.initializer}
    inputs = [i.name for i in model.graph.input if i.name not in weights]
    return inputs, [o.SerializeToString(deterministic=True) for o in model.graph.output]


@cache
def _as_it_is(model_name: str) -> tuple[bytes, bytes, list[np.ndarray]]:
    """Return a checked model, the same read and written again by no pass, and what it computes."""
    model = MODELS[model_name]()
    onnx.checker.check_model(model, full_check=True)
    unchanged = to_model(load(model))
    onnx.checker.check_model(unchanged, full_check=True)
    feeds = random_input(model, 0)
    expected = run(model, feeds)
    assert relative_difference(expected, run(unchanged, feeds)) <= 1e-5
    assert _interface(unchanged) == _interface(model)
    return model.SerializeToString(), unchanged.SerializeToString(deterministic=True), expected


# The models come first, so that a worker prepares each of its own once.
@pytest.mark.parametrize("pass_name", PASSES)
@pytest.mark.parametrize("model_name", MODELS)
def test_pass(pass_name: str, model_name: str) -> None:
    written, unchanged, expected = _as_it_is(model_name)
    model, step = onnx.ModelProto.FromString(written), PASSES[pass_name]

    view = load(model)
    first = step(view)
    after = to_model(view)
    assert not step(view).modified
    assert to_model(view).SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)
    if first.modified:
        onnx.checker.check_model(after, full_check=True)
        assert relative_difference(expected, run(after, random_input(model, 0))) <= 1e-5
        assert _interface(after) == _interface(model)
    else:
        assert after.SerializeToString(deterministic=True) == unchanged
    assert model.SerializeToString() == written


@pytest.mark.parametrize(("pass_name", "model_name"), [(p, m) for p, names in WORKS_ON.items() for m in names])
def test_pass_does_its_work(pass_name: str, model_name: str) -> None:
    assert PASSES[pass_name](load(MODELS[model_name]())).modified


def test_every_pass_is_known_to_work_on_something() -> None:
    assert set(PASSES) - {"NORMALIZE", "CLEAN_UP"} == set(WORKS_ON)


@pytest.mark.parametrize("model_name", [name for name in MODELS if name != "lengths_by_range"])
def test_normal_form(model_name: str) -> None:
    """After NORMALIZE there are no functions, constants, detours, computed weights or unused parts."""
    view = load(MODELS[model_name]())
    NORMALIZE(view)
    assert not view.model.functions
    assert not {i.name for i in view.graph.input} & set(view.weights)
    read = {i for n in view.nodes for i in n.input} | set(view.output_names)
    captured = {"offset", "routed"} if model_name == "subgraph" else set()
    assert set(view.weights) <= read | captured
    for node in view.nodes:
        if not set(node.output) & (set(view.output_names) | captured):
            assert node.op_type not in ("Constant", "Identity", "Dropout", "Shape", "CastLike")
            is_table = any(reader.op_type == "Gather" for reader in view.consumers(node.input[0]))
            assert is_table or not all(view.is_weight(i) for i in node.input if i)


def test_share_undoes_unshare() -> None:
    """Copies that are still equal become one again; one that was edited stays, and so does what was never shared."""
    view = load(_shared_vectors())
    before = set(view.weights)
    made = UnshareInitializers()(view).copies
    copies = set(view.weights) - before
    assert made == {"bn_0_gamma_copy": "bn_0_gamma", "bn_0_beta_copy": "bn_0_beta"}
    assert set(made) == copies
    edited = min(copies)
    view.set_weight(edited, view.weight(edited) + 1)
    assert ShareInitializers(made)(view).modified
    assert not ShareInitializers(made)(view).modified
    read = {i for n in view.nodes for i in n.input}
    assert read & copies == {edited}


def test_pipeline_is_a_pass_that_keeps_records() -> None:
    told: list[str] = []
    pipeline = Pipeline((NORMALIZE, CLEAN_UP), lambda text, done, total: told.append(text))
    result = pipeline(load(FORMS["unused_parts"](_base())))
    assert told == ["Pipeline", "Pipeline"]
    assert [r.name for r in result.records] == [
        *(p.name for p in NORMALIZE.passes), "Pipeline", *(p.name for p in CLEAN_UP.passes), "Pipeline"
    ]  # fmt: skip
    assert [r.name for r in result.records if r.modified] == ["RemoveUnused", "Pipeline"]


def test_a_pipeline_hands_on_what_its_passes_copied() -> None:
    assert set(NORMALIZE(load(_shared_vectors())).copies) == {"bn_0_gamma_copy", "bn_0_beta_copy"}


def test_ensures_follows_a_run() -> None:
    calls: list[str] = []

    class Noisy(Pass):
        def run(self, view: GraphView) -> PassResult:
            calls.append("run")
            return PassResult(modified=False)

        def ensures(self, view: GraphView) -> None:
            calls.append("ensures")

    Noisy()(load(_base()))
    assert calls == ["run", "ensures"]


def test_training_dropout_stays() -> None:
    """A Dropout that is told to drop changes the network; one whose mask is read cannot go either."""
    for inputs, outputs in ((["x", "ratio", "yes"], ["d"]), (["x"], ["d", "mask"])):
        nodes = [helper.make_node("Dropout", inputs, outputs), helper.make_node("Relu", ["d"], ["y"])]
        values = [helper.make_tensor_value_info(n, 1, ["N", 3]) for n in ("x", "y")]
        if "mask" in outputs:
            values.append(helper.make_tensor_value_info("mask", onnx.TensorProto.BOOL, ["N", 3]))
        values_of = {"ratio": np.float32(0.5), "yes": np.array(True)}
        weights = [numpy_helper.from_array(np.asarray(v), name) for name, v in values_of.items()]
        graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
        view = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
        assert not EliminateIdentity()(view).modified
