"""How the repository holds together: who imports whom, what is private, how long a file may be."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 400
#: Top-level folders of Python files; the last four install inside of onnxfold.
FOLDERS = (
    "tests", "testing", "benchmarks", "docs", "examples", "onnxfold", "passes", "export", "edge_bench", "integrations",
)  # fmt: skip
#: What each folder may import of the others that are not installed.
ALLOWED = {
    "testing": {"testing"},
    "benchmarks": {"benchmarks", "testing"},
    "docs": {"docs", "benchmarks"},
    "tests/benchmarks": {"tests", "testing", "benchmarks"},
    "tests/docs": {"tests", "testing", "docs"},
    "tests": {"tests", "testing"},
    "": set(),
}


@cache
def _files() -> list[Path]:
    # rglob does not follow the links in onnxfold/: every file comes once.
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@cache
def _imports(path: Path) -> list[tuple[int, str, list[str]]]:
    """Return line, module and imported names of every import, wherever it stands."""
    return list(_walk(path))


def _walk(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, []


def _statements(parent: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements inside; their expressions, which are most of a file, hold none."""
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from _statements(child)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_imports(path: Path) -> list[str]:
    """Return the imports of private names and modules; a package's own private modules are its own."""
    found = []
    own = path.relative_to(ROOT).parts[:-1]
    if own[:1] in {("passes",), ("export",), ("edge_bench",), ("integrations",)}:
        own = ("onnxfold", *own)
    for line, module, names in _imports(path):
        parts = module.split(".")
        hidden = next((i for i, part in enumerate(parts) if _is_private(part)), None)
        foreign = hidden is not None and tuple(parts[:hidden]) != own[:hidden]
        wanted = [name for name in names if _is_private(name) and (*parts,) != own]
        if foreign or wanted:
            found.append(f"{path.relative_to(ROOT)}:{line}: {module} {', '.join(wanted)}".rstrip())
    return found


def _known(path: Path) -> set[str]:
    name = path.relative_to(ROOT).as_posix()
    return next(allowed for folder, allowed in ALLOWED.items() if not folder or name.startswith(f"{folder}/"))


def test_nothing_private_is_imported() -> None:
    assert [line for path in _files() for line in private_imports(path)] == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("from onnxfold.graph.files.load import _read", True),
        ("from testing.zoo._secret import x", True),
        ("import testing._secret", True),
        ("from onnxfold._version import __version__", True),
        ("from onnxfold.graph.files.load import load", False),
        ("from __future__ import annotations", False),
    ],
)
def test_private_imports_are_found(
    statement: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    path = tmp_path / "tests" / "a.py"
    path.write_text(statement)
    assert bool(private_imports(path)) == found


def test_folders_import_one_way() -> None:
    """Tests and benchmarks build on testing/; the package knows of none of them, benchmarks know of no test."""
    outside = {"tests", "testing", "benchmarks", "docs"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in _files()
        for line, module, _ in _imports(path)
        if module.split(".")[0] in outside - _known(path)
    ]
    assert wrong == []


def test_no_file_is_long() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in _files()}
    assert {name: count for name, count in lengths.items() if count > MAX_LINES} == {}
    assert len(lengths) > 500  # the files were found


def test_every_python_folder_is_looked_at() -> None:
    made = (".", "onnxfold-")  # a source distribution that is built meanwhile
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(made)]
    found = {path.name for path in folders if any(path.rglob("*.py"))}
    assert found - {"build", "dist"} <= set(FOLDERS)
