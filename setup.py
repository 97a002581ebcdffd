"""List of the packages; all else is declared in ``pyproject.toml``.

The customer fixed the top level: `passes`, `export`, `edge_bench` and `integrations` lie there and install inside the
package, where their general names collide with nobody's. They are looked for where they lie: links in `onnxfold/` show
them to what reads a checkout, and a source distribution has no links.
"""

from setuptools import find_packages, setup

INSIDE = ("passes", "export", "edge_bench", "integrations")


def packages() -> list[str]:
    """Return the full names of all packages, as they are imported."""
    own = find_packages(include=["onnxfold", "onnxfold.*"], exclude=[f"onnxfold.{name}*" for name in INSIDE])
    return own + [f"onnxfold.{name}" for name in find_packages(include=[f"{name}*" for name in INSIDE])]


setup(packages=packages(), package_dir={f"onnxfold.{name}": name for name in INSIDE})
