"""Names that are safe in comments of generated C code."""

import re
from itertools import count

from onnx import GraphProto, NodeProto, TensorProto, TensorShapeProto, ValueInfoProto

from onnxfold.graph.nodes import messages
from onnxfold.graph.view import GraphView

_FOREIGN = re.compile(r"[^A-Za-z0-9_./:-]")
_LONGEST = 200


def use_plain_names(view: GraphView) -> None:
    """Rename every name that could end a comment, and drop all other texts of a model.

    The generator copies names, producer and documentation into comments as they are: a name that holds the end of a
    comment would become code. Names of letters, digits and ``_ . / : -`` stay.
    """
    parts = list(messages(view.graph))
    names = dict.fromkeys(view.weights)
    for part in parts:
        if isinstance(part, ValueInfoProto | TensorProto):
            names[part.name] = None
        elif isinstance(part, NodeProto):
            names |= dict.fromkeys((*part.input, *part.output))
    made, used = {"": ""}, set()
    # Plain names first: they stay what they are, whatever others become.
    for name in sorted(filter(None, names), key=lambda name: name != _plain(name)):
        numbered = (f"{_plain(name)}_{number}" if number else _plain(name) for number in count())
        made[name] = next(choice for choice in numbered if choice not in used)
        used.add(made[name])
    for part in parts:
        if "doc_string" in part.DESCRIPTOR.fields_by_name:
            part.ClearField("doc_string")
        if isinstance(part, GraphProto):
            part.name = "model"
            del part.quantization_annotation[:]
        elif isinstance(part, ValueInfoProto | TensorProto):
            part.name = made[part.name]
        elif isinstance(part, TensorShapeProto.Dimension) and part.dim_param:
            part.dim_param = _plain(part.dim_param)
        elif isinstance(part, NodeProto):
            part.input[:] = [made[name] for name in part.input]
            part.output[:] = [made[name] for name in part.output]
            part.name = _plain(part.name)
    view.rename_weights(made.__getitem__)
    model = view.model
    for text in ("producer_name", "producer_version", "domain", "doc_string"):
        model.ClearField(text)
    del model.metadata_props[:]


def _plain(name: str) -> str:
    return _FOREIGN.sub("_", name)[:_LONGEST]
