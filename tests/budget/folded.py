"""Models, folded at several widths, with the cost models that should have known."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

import onnxfold
from onnxfold.budget.costs.lengths import Graphs
from onnxfold.folding.open_model import open_scopes
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from testing.models import ALL_MODELS
from testing.rule_models.table import RULE_MODELS
from testing.zoo import export as zoo_export
from testing.zoo import scalable

RULES = (
    "BitwiseAnd",
    "Where",
    "Concat",
    "Gather",
    "Shuffle",
    "Split-17",
    "LSTM-bidirectional",
    "Einsum",
    "Tile",
    "Resize-13",
)
TORCH = {
    "torch_resnet18": lambda: scalable.resnet18(width=8),
    "torch_mobilenet_v2": lambda: scalable.mobilenet_v2(width_mult=0.25),
    "torch_squeeze_excite": lambda: scalable.squeeze_excite_net(),
}
NAMES = (*ALL_MODELS, *RULES, *TORCH)


@cache
def model(name: str) -> onnx.ModelProto:
    if name in TORCH:
        net = scalable.seeded(TORCH[name](), 0, passes=1)
        with TemporaryDirectory() as folder:
            path = zoo_export.export(net, scalable.example_input(net), Path(folder) / "m.onnx", "legacy-bn")
            return onnx.load(path)
    return ALL_MODELS[name](0) if name in ALL_MODELS else RULE_MODELS[name]()


def graphs_of(proto: onnx.ModelProto) -> Graphs:
    return [(scope.view, scope.analysis.groups) for scope in open_scopes(load(proto))]


def folds(proto: onnx.ModelProto, ratios: tuple[float, ...] = (0.0, 0.35, 0.7)) -> list[tuple[list[int], GraphView]]:
    """Return widths and the model that was really folded to them; every cost is compared with the same folds."""
    written = proto.SerializeToString(deterministic=True)
    return [_fold(written, ratio) for ratio in ratios]


@cache
def _fold(written: bytes, ratio: float) -> tuple[list[int], GraphView]:
    proto = onnx.ModelProto.FromString(written)
    result = onnxfold.fold(proto, channel_ratio=ratio, method="fold-naive", verify=False)
    return [group.folded_width for group in result.report.groups], load(result.model)
