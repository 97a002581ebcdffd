"""Record of the nodes that a walk over a network runs."""

from typing import Any

import pytest
from onnx import NodeProto

from onnxfold.graph.run.node_runner import NodeRunner
from onnxfold.graph.view import GraphView


def outputs_run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that from now on takes the outputs of all nodes that are run one by one."""
    run: list[str] = []
    build = NodeRunner.__init__

    def noted(runner: NodeRunner, view: GraphView, node: NodeProto, *others: Any) -> None:
        run.extend(node.output)
        build(runner, view, node, *others)

    monkeypatch.setattr(NodeRunner, "__init__", noted)
    return run
