"""What is installed: every package, the bundled data, and nothing heavy on import."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SYMLINKS = ("passes", "export", "edge_bench", "integrations")


@pytest.mark.skipif((ROOT / "PKG-INFO").exists(), reason="a source distribution has no links")
@pytest.mark.parametrize("name", SYMLINKS)
def test_symlinks_show_the_same_names_in_the_checkout(name: str) -> None:
    link = ROOT / "onnxfold" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name


def test_import_is_light() -> None:
    code = (
        "import sys, onnxfold, onnxfold.api, onnxfold.cli; "
        "heavy = ('torch', 'matplotlib', 'tflite_runtime', 'ai_edge_litert', 'tensorflow', 'sklearn', 'dask', "
        "'distributed', 'pyarrow'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The unpacked source distribution, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (archive,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    with tarfile.open(archive) as file:
        # Python 3.11 knows filters from 3.11.4 on; Debian has 3.11.2.
        file.extraction_filter = getattr(tarfile, "data_filter", None)
        file.extractall(out)
    (source,) = out.glob("onnxfold-*/")
    return source, wheel


def _files(folder: Path) -> set[str]:
    """Return the files of a folder, without what Python and build tools leave in it."""
    left = {"__pycache__", "build", "dist", "out", "onnxfold.egg-info"}
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not left.intersection(path.parts)}


def test_a_source_distribution_holds_what_tests_it_and_explains_it(distributions: tuple[Path, Path]) -> None:
    source, _ = distributions
    for folder in ("tests", "testing", "docs", "benchmarks", "examples", *SYMLINKS):
        assert _files(ROOT / folder) - _files(source / folder) == set(), folder
    expected = ["ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "Makefile", "Dockerfile", "action.yml", ".ci/run"]
    assert [name for name in expected if not (source / name).is_file()] == []
    # The checkout's links would hold the same files again.
    assert [name for name in SYMLINKS if (source / "onnxfold" / name).exists()] == []


def test_a_wheel_holds_the_package_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    names = {Path(name) for name in zipfile.ZipFile(distributions[1]).namelist()}
    code = {name.as_posix() for name in names if name.parts[0] == "onnxfold"}
    expected = {f"onnxfold/{name}" for name in _files(ROOT / "onnxfold") if name.split("/")[0] not in SYMLINKS}
    expected |= {f"onnxfold/{folder}/{name}" for folder in SYMLINKS for name in _files(ROOT / folder)}
    expected = {name for name in expected if not name.startswith("onnxfold/integrations/action/")}  # runs in a checkout
    assert code == expected
    assert {name.parts[0] for name in names if name.parts[0] != "onnxfold"} == {f"{_name(distributions)}.dist-info"}


def _name(distributions: tuple[Path, Path]) -> str:
    return "-".join(distributions[1].name.split("-")[:2])


def test_metadata_lead_to_the_project(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        metadata = message_from_string(wheel.read(f"{_name(distributions)}.dist-info/METADATA").decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata.get_all("Project-URL") == [f"{name}, {url}" for name, url in project["urls"].items()]
    assert metadata.get_all("Classifier") == project["classifiers"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_wheel_runs_the_demo_outside_the_checkout(tmp_path: Path, distributions: tuple[Path, Path]) -> None:
    """The built wheel, unpacked far from the checkout, finds its models and test images."""
    site = tmp_path / "site"
    zipfile.ZipFile(distributions[1]).extractall(site)
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from onnxfold import cli; print(cli.__file__); cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--model", "lenet5", "--out", "out"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout
    assert len(list((tmp_path / "out").glob("*.onnx"))) == 4
