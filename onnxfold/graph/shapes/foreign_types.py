"""Types of the results of operators that ONNX knows nothing of, from onnxruntime, one node at a time.

onnxruntime knows the operators of its own (com.microsoft, and what old exporters wrote into the default domain). A
model of one node, whose inputs have the dimensions and symbols of the graph, is loaded: what it says of its outputs is
the result. Where it leaves something open, the node is run on arrays of two sizes. A dimension that is the same for
both is a number, and one that is a symbol's size both times is that symbol. A symbol that is called the sum of others,
or the total, has the size of the sum, as masks must fit what is cached. Other values of the same size must give the
same dimensions: otherwise they depend on values, and stay unknown.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper

from onnxfold.graph.nodes import model_of
from onnxfold.graph.run.runtime import session_options
from onnxfold.graph.tensors import Array, TensorType, known_dimensions, to_proto, type_in_onnxruntime


def summands(name: str, names: Iterable[str]) -> list[str]:
    """Return the symbols whose sum a symbol is by its name, none where it is no sum."""
    known = list(names)
    parts = [part for part in re.split(r"\s*\+\s*", name) if part]
    if len(parts) < 2 and "total" in name.lower():
        past = next((n for n in known if "past" in n.lower()), "")
        parts = [past, next((n for n in known if "seq" in n.lower() and n not in (past, name)), "")]
    return parts if len(parts) > 1 and all(part in known for part in parts) else []


def with_sums(sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes of symbols; one that is called the sum of others, or the total, has the size of the sum."""
    for name in sizes:
        if parts := summands(name, sizes):
            sizes[name] = sum(sizes[part] for part in parts)
    return sizes


def symbols_of(sizes: Sequence[int | None], runs: Sequence[Mapping[str, int]]) -> list[str]:
    """Return the symbols that have these sizes in as many runs."""
    return [name for name in runs[0] if all(run[name] == size for run, size in zip(runs, sizes, strict=True))]


#: The size of the first symbol in both runs, and the step to the next. The first row is large enough for windows, and
#: even; the others are for batches of what is large by itself.
_SIZES = (((24, 8), (40, 16)), ((2, 1), (4, 3)), ((1, 1), (2, 1)))
#: Arrays larger than this are not made to run a node.
_MOST_ELEMENTS = 1 << 24
_OPEN = "onnxfold_open_dimension"


def result_types(
    node: NodeProto, inputs: Sequence[TensorType | None], constants: Mapping[int, Array], model: ModelProto
) -> list[TensorType | None]:
    """Return the types of the results of a model's node, None where nothing can be told."""
    alike = NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
    alike.input.extend(name and f"i{i}" for i, name in enumerate(node.input))
    alike.output.extend(name and f"o{i}" for i, name in enumerate(node.output))
    kinds = [(f"i{i}", kind) for i, kind in enumerate(inputs) if kind is not None and i not in constants]
    infos = [helper.make_tensor_value_info(name, kind[0], _sizes_or_symbols(kind)) for name, kind in kinds]
    alone = model_of([alike], infos, [to_proto(f"i{i}", values) for i, values in constants.items()], model)
    types = _session_types(alone.SerializeToString(deterministic=True), tuple(kinds))
    return [types.get(name) for name in alike.output]


@lru_cache(maxsize=1024)
def _session_types(model: bytes, kinds: tuple[tuple[str, TensorType], ...]) -> Mapping[str, TensorType | None]:
    options = session_options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL, threads=1)
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime raises many types
        return {}
    types = {output.name: _read_output(output) for output in session.get_outputs()}
    if any(kind is None or None in known_dimensions(kind) for kind in types.values()):
        types |= _run_types(session, dict(kinds), types)
    return types


def _read_output(output: ort.NodeArg) -> TensorType | None:
    # What has no dimensions is a scalar, or nothing is known of it.
    return _tensor_type(type_in_onnxruntime(output.type), output.shape) if output.shape else None


def _sizes_or_symbols(kind: TensorType) -> list[int | str]:
    return [_OPEN if d is None else d for d in known_dimensions(kind)]


def _tensor_type(elem_type: int, dims: Sequence[int | str | None]) -> TensorType:
    shape = tuple(d if isinstance(d, int) else None for d in dims)
    return elem_type, shape, tuple(d if isinstance(d, str) and d != _OPEN else "" for d in dims)


def _run_types(
    session: ort.InferenceSession, kinds: Mapping[str, TensorType], known: Mapping[str, TensorType | None]
) -> dict[str, TensorType | None]:
    """Return the types of the results as runs at two sizes show them; known types stay."""
    names = dict.fromkeys(s for kind in kinds.values() for s in _sizes_or_symbols(kind) if isinstance(s, str))
    choices = (
        [with_sums({s: first + step * i for i, s in enumerate(names)}) for first, step in steps] for steps in _SIZES
    )
    sizes = next((choice for choice in choices if _fits(choice, kinds)), None)
    if sizes is None:
        return {}
    runs = []
    for which, seed in ((0, 0), (0, 1), (1, 2)):
        random = np.random.default_rng(seed)
        feeds = {n: _random_values(kind[0], _shape(kind, sizes[which]), random) for n, kind in kinds.items()}
        if any(values is None for values in feeds.values()):
            return {}
        with contextlib.suppress(Exception):
            runs.append(session.run(None, feeds))
    if len(runs) < 3:
        return {}
    read: dict[str, TensorType | None] = {}
    for output, *results in zip(known, *runs, strict=True):
        ranks = {np.ndim(values) for values in results}
        if len(ranks) > 1 or not all(isinstance(values, np.ndarray) for values in results):
            continue
        result_type = known[output]
        before: list[int | str | None] = [None] * ranks.pop() if result_type is None else known_dimensions(result_type)
        lengths = zip(before, *(values.shape for values in results), strict=True)
        dims = [
            _dimension(first, again, second, sizes) if old is None else old for old, first, again, second in lengths
        ]
        elem_type = result_type[0] if result_type else int(helper.np_dtype_to_tensor_dtype(results[0].dtype))
        read[output] = _tensor_type(elem_type, dims)
    return read


def _shape(kind: TensorType, sizes: Mapping[str, int]) -> list[int]:
    return [d if isinstance(d, int) else sizes[d] for d in _sizes_or_symbols(kind)]


def _fits(sizes: Sequence[Mapping[str, int]], kinds: Mapping[str, TensorType]) -> bool:
    shapes = (_shape(kind, sizes[1]) for kind in kinds.values())
    return all(np.prod(shape, dtype=np.float64) <= _MOST_ELEMENTS for shape in shapes)


def _random_values(elem_type: int, shape: Sequence[int], random: np.random.Generator) -> Array | None:
    """Return small values; None for types that are not made up."""
    if elem_type == TensorProto.STRING or not elem_type:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    kind = np.dtype(dtype).kind
    if kind in "iub":
        return random.integers(0, 2 if kind == "b" else 4, shape).astype(dtype)
    return random.random(shape, np.float32).astype(dtype, copy=False)


def _dimension(first: int, again: int, second: int, sizes: Sequence[Mapping[str, int]]) -> int | str | None:
    """Return the number or the symbol that a dimension is, None where it is neither."""
    if first != again:
        return None
    if first == second:
        return first
    names = symbols_of((first, second), sizes)
    return names[0] if names and names[0] != _OPEN else None
