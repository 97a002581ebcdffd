"""Models, folded at several widths, with the cost models that should have known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

import onnxfold
from onnxfold.budget.costs.lengths import Graphs
from onnxfold.folding.scopes import open_scopes
from onnxfold.graph.load import load
from onnxfold.graph.view import GraphView
from tests import torch_zoo
from tests.contract.rule_models import RULE_MODELS
from tests.models import ALL_MODELS

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
    "torch_resnet18": lambda: torch_zoo.resnet18(width=8),
    "torch_mobilenet_v2": lambda: torch_zoo.mobilenet_v2(width_mult=0.25),
    "torch_squeeze_excite": lambda: torch_zoo.squeeze_excite_net(),
}
NAMES = (*ALL_MODELS, *RULES, *TORCH)


@cache
def model(name: str) -> onnx.ModelProto:
    if name in TORCH:
        net = torch_zoo.randomise(TORCH[name](), 0, passes=1)
        with TemporaryDirectory() as folder:
            path = torch_zoo.export(net, torch_zoo.example_input(net), Path(folder) / "m.onnx", "legacy-bn")
            return onnx.load(path)
    return ALL_MODELS[name](0) if name in ALL_MODELS else RULE_MODELS[name]()


def graphs_of(proto: onnx.ModelProto) -> Graphs:
    return [(scope.view, scope.analysis.groups) for scope in open_scopes(load(proto))]


def folds(
    proto: onnx.ModelProto, ratios: tuple[float, ...] = (0.0, 0.35, 0.7)
) -> Iterator[tuple[list[int], GraphView]]:
    """Yield widths and the model that was really folded to them."""
    for ratio in ratios:
        result = onnxfold.fold(proto, channel_ratio=ratio, method="fold-naive", verify=False)
        yield [group.folded_width for group in result.report.groups], load(result.model)
