"""The registry that channel rules, torch operators and exporters share: which implementation speaks for a version."""

import pytest

from onnxfold.graph.registry import OperatorRegistry


def _registry() -> OperatorRegistry[str]:
    registry = OperatorRegistry[str]("a word")
    registry.add("Clip", "new", since=11)
    registry.add("Clip", "old", since=6)
    registry.add("Attention", "vendor's", domain="com.microsoft")
    return registry


@pytest.mark.parametrize(("version", "found"), [(5, None), (6, "old"), (10, "old"), (11, "new"), (22, "new")])
def test_the_newest_that_is_not_newer_than_the_model_is_found(version: int, found: str | None) -> None:
    assert _registry().find("", "Clip", version) == _registry().find("ai.onnx", "Clip", version) == found


def test_domains_are_apart() -> None:
    registry = _registry()
    assert registry.find("com.microsoft", "Attention", 1) == "vendor's"
    assert registry.find("", "Attention", 99) is None
    assert registry.find("com.microsoft", "Clip", 11) is None


def test_everything_is_listed_in_order() -> None:
    assert list(_registry()) == [("", "Clip", "old"), ("", "Clip", "new"), ("com.microsoft", "Attention", "vendor's")]


def test_a_version_is_registered_once() -> None:
    with pytest.raises(ValueError, match=r"ai\.onnx::Clip version 11 already has a word"):
        _registry().add("Clip", "another", since=11, domain="ai.onnx")
