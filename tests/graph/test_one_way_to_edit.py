"""Only `onnxfold.graph` edits graphs in place; all others ask the view, which then forgets what no longer holds."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Fields of a graph's messages, and a view's weights and assumed shapes.
FIELDS = frozenset(
    [
        "node",
        "input",
        "output",
        "attribute",
        "initializer",
        "value_info",
        "op_type",
        "ints",
        "floats",
        "f",
        "g",
        "i",
        "s",
        "t",
        "dim",
        "dim_value",
        "dim_param",
        "weights",
        "input_shapes",
    ]
)
#: What changes a repeated field, a message or a dict.
CHANGES = frozenset(
    {"append", "extend", "insert", "add", "remove", "pop", "clear", "update", "setdefault", "CopyFrom", "MergeFrom",
     "ClearField", "sort", "reverse"}
)  # fmt: skip


def edits(source: str) -> Iterator[str]:
    """Yield the statements and calls of a module that change a graph's message or a view in place."""
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and _changes(node.func):
            yield f"{node.lineno}: {ast.unparse(node)}"
        for target in (t for found in targets for t in (found.elts if isinstance(found, ast.Tuple) else [found])):
            inner = target.value if isinstance(target, ast.Subscript) else target
            if _is_field(inner):
                yield f"{node.lineno}: {ast.unparse(target)}"


def _changes(function: ast.expr) -> bool:
    """Whether a function is a method that changes a field."""
    return isinstance(function, ast.Attribute) and function.attr in CHANGES and _is_field(function.value)


def _is_field(expression: ast.expr) -> bool:
    """Whether an expression is a field of something else's; an object may set its own."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if not isinstance(expression, ast.Attribute):
        return False
    owner = expression.value
    own = isinstance(owner, ast.Name) and owner.id == "self"
    return expression.attr in FIELDS and not own


def modules() -> list[Path]:
    """Return the package's modules but those of `onnxfold.graph`."""
    found = [p for top in ("onnxfold", "passes", "export", "edge_bench") for p in (ROOT / top).rglob("*.py")]
    here = ROOT / "onnxfold"
    return sorted(p for p in found if here / "graph" not in p.parents and not any(q.is_symlink() for q in p.parents))


def test_no_module_edits_a_graph_by_itself() -> None:
    found = {str(p.relative_to(ROOT)): list(edits(p.read_text(encoding="utf-8"))) for p in modules()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    ["node.input[0] = 'x'", "del node.input[1:]", "node.attribute.append(a)", "view.graph.node.extend(fresh)",
     "node.output[:] = names", "node.op_type = 'Identity'", "attr.i = 3", "attr.g.CopyFrom(body)",
     "view.weights['w'] = w", "view.weights.pop('w')",
     "view.input_shapes = {}", "node.input[2], node.input[3] = a, b", "view.nodes[0].input[0] = 'x'"],
)  # fmt: skip
def test_edits_are_found(line: str) -> None:
    assert list(edits(line))


@pytest.mark.parametrize("line", ["x = node.input[0]", "names.append(node.input[0])", "self.weights = weights"])
def test_reading_is_no_edit(line: str) -> None:
    assert not list(edits(line))
