"""Hooks of the documentation site: pages from outside of ``docs/``, and links that hold in the site.

Pages are written for a reader of the repository. The README's links are addresses of files there; pages in ``docs/``
link each other, and files outside, by relative paths. In the site, a link to a page that the site has goes to that
page, and any other one to the file's address.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]

#: Pages of the site that lie outside of docs/, by their names there.
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}

_LINK = re.compile(r"\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside of ``docs/``."""
    for source, name in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead every link to a page of the site, or to the file in the repository."""
    own = {name: source for source, name in OUTSIDE.items()}
    source = own.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return _LINK.sub(lambda match: f"]({led(match[1], source, config['repo_url'])})", markdown)


def led(link: str, source: str, repository: str) -> str:
    """Return where a link of a page leads in the site.

    Parameters
    ----------
    link : str
        As it is written.
    source : str
        The page's path in the repository.
    repository : str
        Address of the repository.

    Examples
    --------
    >>> led("../benchmarks/latency.md", "docs/usage.md", "https://host/onnxfold")
    'https://host/onnxfold/blob/main/benchmarks/latency.md'
    >>> led("https://host/onnxfold/blob/main/docs/usage.md#goals", "README.md", "https://host/onnxfold")
    'usage.md#goals'
    >>> led("../README.md#exit-codes", "docs/usage.md", "https://host/onnxfold")
    'index.md#exit-codes'
    """
    address = f"{repository}/blob/main/"
    path, mark, anchor = link.partition("#")
    if path.startswith(address):
        target = path.removeprefix(address)
    elif not path or ":" in path:
        return link
    else:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    inside = OUTSIDE.get(target) or (target.removeprefix("docs/") if re.fullmatch(r"docs/[\w-]+\.md", target) else None)
    return f"{inside or address + target}{mark}{anchor}"
