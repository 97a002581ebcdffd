"""The functions at the root of the package: no module hides one, and the examples in their help run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import onnxfold
from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.config.values import ALLOCATIONS, INPUTS
from onnxfold.folding.methods import METHODS, REPAIRS
from testing import models


def _import_every_module() -> int:
    """Import all submodules whose optional dependencies are there; return how many."""
    count = 0
    for module in pkgutil.walk_packages(onnxfold.__path__, "onnxfold."):
        if module.name == "onnxfold.__main__":
            continue  # a program
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("onnxfold"):
                raise
        else:
            count += 1
    return count


def test_no_module_hides_a_public_function() -> None:
    """Importing a submodule sets an attribute of its package, which hides a function of that name."""
    assert _import_every_module() > 200
    model = models.mlp(0)
    assert onnxfold.inspect(model)
    folded = onnxfold.fold(model, 0.3, method="fold-naive", allocation="uniform", verify=False)
    assert onnxfold.compare(model, folded.model).samples
    assert isinstance(folded, onnxfold.FoldResult)
    assert onnxfold.FoldConfig(sparsity=0.5).sparsity == 0.5


@pytest.mark.parametrize("name", ["compare", "fold", "inspect", "to_torch"])
def test_the_example_in_the_help_runs(name: str) -> None:
    function = getattr(onnxfold, name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    found = doctest.DocTestFinder(recurse=False).find(function, name, module=False, globs={})
    for example in found:
        runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0


def test_the_package_lists_its_functions_and_compare_shows_itself_as_fold_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(onnxfold.__all__) <= set(dir(onnxfold))
    assert "function at" not in str(inspect.signature(onnxfold.compare))
    model = models.mlp(0)
    print(onnxfold.compare(model, model))
    assert re.search(
        r"(?m)^256 samples of .*\n  \w+: relative error 0, top-1 agreement 100.0%", capsys.readouterr().out
    )


def test_the_help_of_fold_names_every_option_and_every_row() -> None:
    text = onnxfold.fold.__doc__ or ""
    for name in inspect.signature(onnxfold.fold).parameters:
        assert re.search(rf"^    (\w+, )*{name}(, \w+)* :", text, re.MULTILINE), name
    for name in (*METHODS, *PARTITIONERS, *REPAIRS, *ALLOCATIONS, *INPUTS):
        assert f"'{name}'" in text, name
