"""Whoever writes a file does so through onnxfold.files, or into a draft or scratch folder of its own."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WRITERS = {"write_bytes", "write_text", "tofile", "savez", "savefig", "mkstemp", "mkdtemp", "NamedTemporaryFile",
           "copyfile", "copytree", "unlink", "rmtree"}  # fmt: skip
#: Modules that write into a folder that a caller made for this, and that is gone or moved at the end.
INTO_DRAFTS = {
    "onnxfold/graph/run/session.py", "onnxfold/sweeps/content.py", "export/draft.py", "export/quantize.py",
    "export/firmware/project.py", "edge_bench/runners/qemu_runner.py", "edge_bench/runners/linux.py",
    "edge_bench/boards/qemu.py", "edge_bench/job.py",
}  # fmt: skip
#: Tells the kernel to forget what a process used, by writing a number to /proc.
KERNEL = {"edge_bench/measure_script.py"}
#: Removes weights that nobody reads any more, and what it placed itself; parts of a sweep that are in one file now.
REMOVES = {"onnxfold/graph/files/save.py", "onnxfold/sweeps/results.py"}


def _writes(tree: ast.AST) -> bool:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        modes = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
        if name in WRITERS or (name == "open" and any(m in ("w", "wb", "x", "xb", "a", "ab", "x+b") for m in modes)):
            return True
        if name == "replace" and isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "os":
            return True
    return False


def test_only_one_package_writes_files() -> None:
    found = set()
    for folder in ("onnxfold", "passes", "export", "edge_bench"):
        for path in (ROOT / folder).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if not name.startswith(("onnxfold/files/", "onnxfold/passes/", "onnxfold/export/", "onnxfold/edge_bench/")):
                found |= {name} if _writes(ast.parse(path.read_text(encoding="utf-8"))) else set()
    assert found == INTO_DRAFTS | KERNEL | REMOVES
