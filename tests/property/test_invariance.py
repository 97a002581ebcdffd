"""What must not matter: the order of channels, names, how the exporter wrote the file, the run, the process."""

import os
import subprocess
import sys
from functools import cache
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from testing.cells import in_turn
from testing.compare import relative_difference
from testing.models import ALL_MODELS, random_input, run
from testing.quick import LOSSLESS, quick_fold
from testing.widening.widen import widen
from tests.export_forms import FORMS, runtime_optimised

RATIO = 0.3
SOME = ["chain_conv", "residual", "dense_net", "flatten_conv", "grouped_conv", "gemm_variants"]


def _outputs(model: onnx.ModelProto, method: str, **options: object) -> list[np.ndarray]:
    folded = quick_fold(model, method=method, verify=False, **{"channel_ratio": RATIO, **options}).model
    return run(folded, random_input(model, 0))


@cache
def _plain_outputs(name: str, method: str) -> list[np.ndarray]:
    return _outputs(ALL_MODELS[name](0), method)


def _renamed(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Give every tensor and every second node a meaningless name, interface included; the others get none."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.value_info[:]
    graph = result.graph
    names = [*(i.name for i in graph.input), *(t.name for t in graph.initializer)]
    names += [o for n in graph.node for o in n.output]
    order = np.random.default_rng(seed).permutation(len(names))
    new = {"": "", **{name: f"t/{number}:0" for name, number in zip(names, order, strict=True)}}
    for index, node in enumerate(graph.node):
        node.name = f"n{1000 - index}" if index % 2 else ""
        node.input[:] = [new[i] for i in node.input]
        node.output[:] = [new[o] for o in node.output]
    for named in (*graph.input, *graph.output, *graph.initializer):
        named.name = new[named.name]
    return result


@pytest.mark.parametrize(("name", "seed"), zip(ALL_MODELS, cycle([0, 1])))
def test_permuting_channels_permutes_nothing_observable(name: str, seed: int) -> None:
    model = ALL_MODELS[name](seed)
    permuted, _ = widen(model, seed, factor=1)
    assert permuted.SerializeToString() != model.SerializeToString()
    expected = _outputs(model, "fold-naive")
    assert relative_difference(expected, _outputs(permuted, "fold-naive")) <= 1e-4
    assert relative_difference(expected, run(model, random_input(model, 0))) > 1e-3  # something was folded


@pytest.mark.parametrize(("name", "method"), in_turn(ALL_MODELS, LOSSLESS))  # the others: pytest.mark.long
def test_keeping_all_channels_is_the_identity(name: str, method: str) -> None:
    model = ALL_MODELS[name](0)
    result = quick_fold(model, channel_ratio=0.0, method=method, verify=False)
    assert all(g.folded_width == g.width for g in result.report.groups)
    assert result.report.after.parameters == result.report.before.parameters
    before, after = ({t.name: t.raw_data for t in m.graph.initializer} for m in (model, result.model))
    assert before == after
    feeds = random_input(model, 0)
    for a, b in zip(run(model, feeds), run(result.model, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("method", LOSSLESS)
@pytest.mark.parametrize("name", SOME)
def test_names_do_not_matter(name: str, method: str) -> None:
    model = ALL_MODELS[name](0)
    renamed = _renamed(model, 1)
    plain, other = (quick_fold(m, channel_ratio=RATIO, method=method, verify=False) for m in (model, renamed))
    widths = [[(g.width, g.folded_width) for g in r.report.groups] for r in (plain, other)]
    assert widths[0] == widths[1]
    assert plain.report.after.parameters == other.report.after.parameters
    feeds = random_input(model, 0)
    renamed_feeds = dict(zip([i.name for i in renamed.graph.input], feeds.values(), strict=True))
    assert relative_difference(run(plain.model, feeds), run(other.model, renamed_feeds)) <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["chain_conv", "residual", "flatten_conv"])
def test_the_form_of_the_export_does_not_matter(name: str, form: str) -> None:
    model = ALL_MODELS[name](0)
    exported = FORMS[form](model)
    feeds = random_input(model, 0)
    assert relative_difference(run(model, feeds), run(exported, feeds)) <= 1e-5
    assert relative_difference(_plain_outputs(name, "fold-ar"), _outputs(exported, "fold-ar")) <= 1e-5


@pytest.mark.parametrize("method", ["fold-ar", "fold-naive"])  # a fused activation hides what is refitted
@pytest.mark.parametrize("name", ["chain_conv_plain", "mlp", "residual_plain", "matmul_bias_net"])
def test_fused_operators_of_onnxruntime_fold_like_their_parts(name: str, method: str) -> None:
    model = ALL_MODELS[name](0)
    optimised = runtime_optimised(model)
    assert {n.domain for n in optimised.graph.node} - {""} or name == "matmul_bias_net"
    assert relative_difference(_plain_outputs(name, method), _outputs(optimised, method)) <= 1e-5


@pytest.mark.parametrize("method", LOSSLESS)
def test_same_input_same_seed_same_bytes(method: str) -> None:
    model = ALL_MODELS["dense_net"](0)
    first, second = (
        quick_fold(model, channel_ratio=RATIO, method=method, seed=3).model.SerializeToString() for _ in range(2)
    )
    assert first == second


_FOLD = (
    "import sys, onnxfold; model, out, inputs = sys.argv[1:]; "
    # A busy machine must not let the clock decide about steps.
    "onnxfold.fold(model, channel_ratio=0.3, inputs=inputs, input_seconds=3600, samples=16, verify=False).save(out)"
)


@pytest.mark.parametrize("inputs", ["dead-leaves", pytest.param("auto", marks=pytest.mark.long)])
def test_same_bytes_in_another_process(inputs: str, tmp_path: Path) -> None:
    """Nothing depends on the order of a set, which changes with the seed of Python's string hashes."""
    source = tmp_path / "in.onnx"
    onnx.save(FORMS["computed_weights"](FORMS["model_functions"](ALL_MODELS["residual"](0))), source)
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _FOLD, str(source), str(tmp_path / f"{seed}.onnx"), inputs]
        subprocess.run(command, check=True, env=environment, capture_output=True)
    assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / "2.onnx").read_bytes()


@pytest.mark.parametrize(("form", "method"), zip(["plain", *FORMS], cycle(LOSSLESS)))
def test_the_original_is_not_touched(form: str, method: str, tmp_path: Path) -> None:
    model = ALL_MODELS["residual"](0)
    model = FORMS[form](model) if form in FORMS else model
    before = model.SerializeToString(deterministic=True)
    result = quick_fold(model, channel_ratio=RATIO, method=method)
    onnxfold.inspect(model)
    result.model.graph.node[0].name = "changed by the caller"
    assert model.SerializeToString(deterministic=True) == before

    path = tmp_path / "in.onnx"
    path.write_bytes(before)
    stamp = path.stat().st_mtime_ns
    quick_fold(path, channel_ratio=RATIO, method=method).save(tmp_path / "out.onnx")
    assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == stamp
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]
