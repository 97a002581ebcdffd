"""Which files a model lies in: its own, and those that hold its weights."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxfold.files import Read
from onnxfold.graph.tensors import LazyTensor
from onnxfold.graph.view import GraphView


def claims_on(
    models: Iterable[str | Path | ModelProto], data: Mapping[str, str | Path | None] | None = None
) -> Iterator[Read]:
    """Return every file that a run reads.

    Parameters
    ----------
    models : iterable of path or ModelProto
        Models; one without a path lies in no file.
    data : mapping of str to path or None, optional
        Other files, by what they are.
    """
    for role, path in (data or {}).items():
        if path is not None:
            yield Read(Path(path), f"the file of {role}")
    for model in models:
        if isinstance(model, str | Path):  # whatever else it may be is refused when it is loaded
            yield Read(Path(model), "the input model")
            for path in external_files(Path(model)):
                yield Read(path, f"the file that holds weights of the input model '{model}'")


def external_files(path: Path) -> list[Path]:
    """Return the files that hold weights of a model; none where it is no regular file or no model.

    The files need not exist, and may lie where no weights are read from.
    """
    try:
        if not path.is_file():
            return []
        model = onnx.load(str(path), load_external_data=False)
    except Exception:  # whoever loads it says what is wrong
        return []
    folder = path.resolve().parent
    return [folder / location for location in locations(model)]


def locations(model: ModelProto) -> list[str]:
    """Return where a model says its external data lies, bodies and functions included, each place once."""
    graphs = [model.graph, *(g for t in model.training_info for g in (t.initialization, t.algorithm))]
    nodes = [node for function in model.functions for node in function.node]
    tensors = (t for part in (*map(_tensors, graphs), _tensors_of_nodes(nodes)) for t in part)
    found = (e.value for t in tensors if t.data_location == TensorProto.EXTERNAL for e in t.external_data
             if e.key == "location")  # fmt: skip
    return list(dict.fromkeys(found))


def lazy_files(view: GraphView) -> list[Path]:
    """Return the files that a view still reads weights from."""
    lazy = (w for w in view.weights.values() if isinstance(w, LazyTensor) and w.is_external and w.base_dir is not None)
    places = ((w.base_dir, e.value) for w in lazy for e in w.proto.external_data if e.key == "location")
    return list(dict.fromkeys(folder / location for folder, location in places if folder is not None))


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(graph)
