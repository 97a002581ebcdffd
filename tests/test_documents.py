"""Whatever the hand-written pages name exists: files, tests, names of the code, options, make targets, links."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from onnxfold.config import OPTIONS
from onnxfold.config.option import flag_of

ROOT = Path(__file__).resolve().parents[1]
GENERATED = {"cli.md", "operators.md", "tflite_ops.md"}
PAGES = sorted([*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED)])
FOLDERS = (
    "tests", "testing", "benchmarks", "docs", "examples", "onnxfold", "passes", "export", "edge_bench", "integrations",
)  # fmt: skip

URLS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
#: Where the files of the repository are shown.
FILES_AT = f"{URLS['Repository']}/blob/main/"

#: Names of other tools, of what is no more, and of the examples in CONTRIBUTING.md.
ELSEWHERE = {
    "onnx.defs", "onnx.checker", "inputs.steps", "utils.py", "OUT.data",
    "benchmarks.edge_table", "benchmarks.fold_accuracy", ".fashion", ".lenet5", "max_biases", "dialout",
    "dist/", "torch.onnx.export", "onnxfold.json", "onnxfold.html",
}  # fmt: skip

_NAME = re.compile(r"^( *)(?:async )?(?:def |class )?([A-Za-z_]\w*)(?: *[:=(\[]|$)")
_FILE = re.compile(r"\.(py|md|toml|json|c|h|cpp|ld|yaml|yml|onnx)$")


@cache
def _paths() -> dict[str, Path]:
    """Return files and folders by every ending of their path."""
    # rglob does not follow the links in onnxfold/.
    found = [*ROOT.iterdir(), *(path for folder in (".ci", *FOLDERS) for path in (ROOT / folder).rglob("*"))]
    parts = [(path.relative_to(ROOT).parts, path) for path in found if "__pycache__" not in path.parts]
    return {"/".join(name[start:]): path for name, path in parts for start in range(len(name))}


@cache
def _code() -> str:
    """Return the text of all sources but this one."""
    kinds = {".py", ".c", ".h", ".cpp", ".toml", ".ld"}
    files = [path for path in set(_paths().values()) if path.suffix in kinds and path != Path(__file__)]
    return "\n".join(path.read_text(encoding="utf-8") for path in [*files, ROOT / "Makefile"])


@cache
def _words() -> set[str]:
    return {word for word in re.findall(r"\.?\w[\w-]*", _code()) for word in (word, *re.findall(r"\.?\w+", word))}


@cache
def _names() -> set[str]:
    """Return what the code defines, by every dotted ending of its full name."""
    found: set[str] = set()
    for path in {path for path in _paths().values() if path.suffix == ".py"}:
        module = ["onnxfold", *path.relative_to(ROOT).with_suffix("").parts]
        text = path.read_text(encoding="utf-8")
        full = [module, *([*module, *name] for name in _defined(text))]
        if module[-1] == "__init__":
            full = [module[:-1], *([*module[:-1], word] for word in re.findall(r"\w+", text))]
        found |= {".".join(name[start:]) for name in full for start in range(len(name))}
    return found


def _defined(source: str) -> list[list[str]]:
    """Return functions, classes and variables of a module, and what its classes define."""
    names, owner = [], ""
    for match in filter(None, map(_NAME.match, source.splitlines())):
        if not match[1]:
            owner = match[2]
            names.append([owner])
        elif len(match[1]) == 4:
            names.append([owner, match[2]])
    return names


def _is_there(name: str) -> bool:
    """Whether a name in backticks exists; texts of other kinds are not looked at."""
    path, _, test = name.partition("::")
    is_name = re.fullmatch(r"[\w.][\w./-]*(::\w+)?", name) and not name.startswith(("m-", "x-"))  # boards answer so
    if name in ELSEWHERE or not is_name:
        return True
    if test:
        return path in _paths() and re.search(rf"\b{test}\b", _paths()[path].read_text(encoding="utf-8")) is not None
    if "/" in name or _FILE.search(name):
        return name.rstrip("/") in _paths() or ("/" not in name and name in _code())
    if re.fullmatch(r"\w+(\.\w+)+|([A-Z]+[a-z]+){2,}", name):
        return name in _names()
    return name in _words()


def _without_diffs(page: Path) -> str:
    """Return a page without what its diffs add, which is not there yet."""
    return re.sub(r"```diff.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_exist(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", _without_diffs(page), flags=re.DOTALL)
    assert [name for name in re.findall(r"`([^`\n]+)`", prose) if not _is_there(name)] == []


@pytest.mark.parametrize(
    "name",
    ["folding/no.py", "no.py", "tests/test_cli.py::test_no", "Method.no", "NoMethod", "no_such_name", "no-such-kind"],
)
def test_missing_names_are_found(name: str) -> None:
    assert not _is_there(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_targets_and_extras_exist(page: Path) -> None:
    text = _without_diffs(page)
    commands = [*re.findall(r"`([^`]+)`", text), *re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)]
    ours = [c for c in commands if re.match(r"(onnxfold|python -m (benchmarks|docs)|--)", c)]
    options = {option for command in ours for option in re.findall(r"(?<!\S)--[a-z][a-z0-9-]+", command)}
    folds = {flag_of(name, option) for name, option in OPTIONS.items()}
    assert [option for option in sorted(options) if option not in folds and f'"{option}' not in _code()] == []
    targets = set(re.findall(r"(?:`|^ {4})make ([a-z][a-z-]*)", text, re.MULTILINE))
    assert {target for target in targets if not re.search(rf"^{target}:", _code(), re.MULTILINE)} == set()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"'(?:onnxfold|\.)\[(\w+)\]'", text)) <= set(extras)


def _diffs(page: Path) -> list[list[tuple[str, str]]]:
    """Return the diffs of a page: lists of a file's path and what its lines are."""
    diffs = re.findall(r"```diff\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    sections = [[section.partition("\n") for section in diff.split("+++ ")[1:]] for diff in diffs]
    return [[(head.split(",")[0], lines) for head, _, lines in diff] for diff in sections]


def test_recipes_with_files_of_this_repository_show_them() -> None:
    diffs = [diff for diff in _diffs(ROOT / "CONTRIBUTING.md") if (ROOT / diff[0][0]).exists()]
    assert len(diffs) == 4
    for path, lines in (section for diff in diffs for section in diff):
        there = (ROOT / path).read_text(encoding="utf-8")
        assert [
            line for line in lines.splitlines() if "..." not in line and line[1:].strip().rstrip('"') not in there
        ] == [], path


def test_recipes_use_names_that_exist() -> None:
    """Examples of new files call functions of this repository, or what they define."""
    examples = [diff for diff in _diffs(ROOT / "CONTRIBUTING.md") if not (ROOT / diff[0][0]).exists()]
    assert len(examples) == 3
    for diff in examples:
        assert [path for path, _ in diff[1:] if not (ROOT / path).exists()] == []
        lines = "\n".join(lines for _, lines in diff)
        defined = set(re.findall(r"(?:class|def) (\w+)", lines))
        assert set(re.findall(r"[.\s(](\w+)\(", lines)) - defined - _words() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in _links(page) if not _leads_somewhere(page, link)] == []


def _links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))


def _leads_somewhere(page: Path, link: str) -> bool:
    """Whether a link leads to something in this repository, relative or by its address; of others nothing is known."""
    path, _, anchor = link.partition("#")
    if path.startswith(FILES_AT):
        target = ROOT / path.removeprefix(FILES_AT)
    elif path.startswith("http"):
        return not path.startswith(URLS["Repository"]) or path in URLS.values()
    else:
        target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


@pytest.mark.parametrize(
    "link", ["no.md", "#no", f"{URLS['Repository']}/no", f"{FILES_AT}no.md", f"{FILES_AT}README.md#no"]
)
def test_links_to_nothing_are_found(link: str) -> None:
    assert not _leads_somewhere(ROOT / "README.md", link)


def test_the_readme_can_be_read_far_from_the_repository() -> None:
    """It is the page of the package in an index, where a relative link leads nowhere, and an anchor is another one."""
    readme = _links(ROOT / "README.md")
    assert [link for link in readme if not link.startswith("http")] == []
    assert sum(link.startswith(FILES_AT) for link in readme) > 20


def test_addresses_of_the_project_lead_somewhere() -> None:
    assert {"Documentation", "Repository", "Issues", "Changelog"} <= set(URLS)
    assert [
        url for url in URLS.values() if url.startswith(FILES_AT) and not (ROOT / url[len(FILES_AT) :]).exists()
    ] == []


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
