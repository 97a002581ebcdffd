"""What is installed: every package, the bundled data, and nothing heavy on import."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).resolve().parent.parent
SYMLINKS = ("passes", "export", "edge_bench")


def test_every_package_is_discovered() -> None:
    expected = set()
    for init in (ROOT / "onnxfold").rglob("__init__.py"):
        expected.add(".".join(init.parent.relative_to(ROOT).parts))
    for name in SYMLINKS:  # rglob does not follow links
        for init in (ROOT / name).rglob("__init__.py"):
            expected.add(".".join(("onnxfold", *init.parent.relative_to(ROOT).parts)))
    find = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert set(find_packages(str(ROOT / find["where"][0]), include=find["include"])) == expected


@pytest.mark.parametrize("name", SYMLINKS)
def test_symlinks_show_the_same_names_in_the_checkout(name: str) -> None:
    link = ROOT / "onnxfold" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name


def test_import_is_light() -> None:
    code = (
        "import sys, onnxfold, onnxfold.api, onnxfold.cli; "
        "heavy = ('torch', 'matplotlib', 'tflite_runtime', 'ai_edge_litert', 'tensorflow', 'sklearn'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_wheel_runs_the_demo_outside_the_checkout(tmp_path: Path) -> None:
    """The built wheel, unpacked far from the checkout, finds its models and test images."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from onnxfold import cli; print(cli.__file__); cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--model", "lenet5", "--out", "out"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout
    assert len(list((tmp_path / "out").glob("*.onnx"))) == 4
