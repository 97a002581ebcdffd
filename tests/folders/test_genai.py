"""A folded folder runs in onnxruntime-genai, with its past, and writes what onnxruntime alone writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

import onnxfold
from onnxfold.folders import folder_of
from onnxfold.folders.configs import with_heads, with_layers
from testing.genai_models import HEADS, Kind
from testing.generate import by_genai, by_loop
from testing.model_folders import SHARED, write_genai_folder, write_optimum_folder

pytest.importorskip("onnxruntime_genai")

PROMPT, LENGTH = (1, 5, 9, 13), 24


@pytest.mark.parametrize("kind", ["packed", "normed"])
def test_a_folded_folder_writes_as_onnxruntime_does(kind: Kind, tmp_path: Path) -> None:
    source = write_genai_folder(tmp_path / "in", kind)
    result = onnxfold.fold(source, channel_ratio=0.5, method="fold-naive", cluster="kmeans", verify=False)
    assert [(g.width, g.folded_width) for g in result.report.groups] == [(6, 3), (80, 40)] * 2
    folded = result.save(tmp_path / "out")
    written = [by_genai(folder, PROMPT, LENGTH) for folder in (source, folded)]
    assert written == [by_loop(folder, PROMPT, LENGTH) for folder in (source, folded)]
    assert all(len(set(tokens[len(PROMPT) :])) > 3 for tokens in written)
    assert written[0] != written[1]


@pytest.mark.parametrize("per_layer", [False, True])
def test_caches_with_fewer_heads(per_layer: bool, tmp_path: Path) -> None:
    source = write_genai_folder(tmp_path / "in")
    ratios = {"node_qkv_0": 0.34, "node_qkv_1": 0.67 if per_layer else 0.34}
    options: dict[str, Any] = {"channel_ratio": 0.25, "ratios": ratios, "method": "fold-ar", "verify": False}
    result = onnxfold.fold(source, allow_cache_change=True, per_layer_cache=per_layer, **options)
    folded = result.save(tmp_path / "out")
    heads = [i.shape[1] for i in ort.InferenceSession(folded / "model.onnx").get_inputs() if "key_values" in i.name]
    assert heads == ([2, 2, 1, 1] if per_layer else [2, 2, 2, 2])
    written = by_genai(folded, PROMPT, LENGTH)
    assert written == by_loop(folded, PROMPT, LENGTH) == by_loop(folded, PROMPT, LENGTH, keeps_past=False)
    assert len(set(written[len(PROMPT) :])) > 3
    texts = [(folder / "genai_config.json").read_text().splitlines() for folder in (source, folded)]
    changed = [(a.strip(), b.strip()) for a, b in zip(*texts, strict=True) if a != b]
    if per_layer:
        assert not changed
        assert any("layers keep different numbers of heads" in note for note in result.report.notes)
    else:
        assert changed == [
            (f'"num_attention_heads": {HEADS},', '"num_attention_heads": 4,'),
            (f'"num_key_value_heads": {SHARED}', '"num_key_value_heads": 2'),
        ]


def test_a_folder_of_optimum_states_its_heads(tmp_path: Path) -> None:
    source = write_optimum_folder(tmp_path / "in")
    options: dict[str, Any] = {"channel_ratio": 0.5, "method": "fold-ar", "verify": False, "allow_cache_change": True}
    folded = onnxfold.fold(source, **options).save(tmp_path / "out")
    config = json.loads((source / "config.json").read_text())
    assert json.loads((folded / "config.json").read_text()) == config | {"num_key_value_heads": 1}
    written = by_loop(folded, PROMPT, LENGTH)
    assert written == by_loop(folded, PROMPT, LENGTH, keeps_past=False)


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"text_config": {"num_key_value_heads": 2}}, {"text_config": {"num_key_value_heads": 1}}),
        ({"num_kv_heads": 2}, {"num_kv_heads": 1}),
        ({"n_head": 2}, {"n_head": 2, "num_key_value_heads": 1}),
    ],
)
def test_the_number_is_written_where_it_stood(stated: dict[str, Any], told: dict[str, Any], tmp_path: Path) -> None:
    source = write_optimum_folder(tmp_path / "in")
    (source / "config.json").write_text(json.dumps(stated))
    before, after = {"past.0.key": 2, "past.0.value": 2}, {"past.0.key": 1, "past.0.value": 1}
    folder = folder_of(source)
    assert folder is not None
    changed, notes = with_heads(folder, before, after)
    assert json.loads(changed.edited[Path("config.json")]) == told
    assert bool(notes) == ("n_head" in stated)
    assert with_heads(folder, before, before) == (folder, ())


def test_a_folder_of_optimum_writes_with_its_past(tmp_path: Path) -> None:
    source = write_optimum_folder(tmp_path / "in")
    folded = onnxfold.fold(source, channel_ratio=0.25, method="fold-ar", verify=False).save(tmp_path / "out")
    written = by_loop(folded, PROMPT, LENGTH)
    assert written == by_loop(folded, PROMPT, LENGTH, keeps_past=False)
    assert len(set(written)) > 3


def test_a_folder_without_some_of_its_layers(tmp_path: Path) -> None:
    source = write_genai_folder(tmp_path / "in")
    options: dict[str, Any] = {"samples": 4, "cache": None, "verify": False, "allow_cache_change": True}
    folded = onnxfold.fold(source, drop_blocks=1, **options).save(tmp_path / "out")
    config = json.loads((folded / "genai_config.json").read_text())
    assert config["model"]["decoder"]["num_hidden_layers"] == 1
    names = {i.name for i in ort.InferenceSession(folded / "model.onnx").get_inputs()}
    assert names == {"input_ids", "attention_mask", "past_key_values.0.key", "past_key_values.0.value"}
    written = by_genai(folded, PROMPT, LENGTH)
    assert written == by_loop(folded, PROMPT, LENGTH) == by_loop(folded, PROMPT, LENGTH, keeps_past=False)


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"num_hidden_layers": 4}, {"num_hidden_layers": 2}),
        ({"n_layer": 4}, {"n_layer": 2}),
        ({"text_config": {"num_hidden_layers": 4}}, {"text_config": {"num_hidden_layers": 2}}),
        (
            {"num_hidden_layers": 4, "layer_types": ["a", "b", "c", "d"]},
            {"num_hidden_layers": 2, "layer_types": ["a", "d"]},
        ),
        ({"num_hidden_layers": 7}, {"num_hidden_layers": 7}),
    ],
)
def test_the_number_of_layers_is_written_where_it_stood(
    stated: dict[str, Any], told: dict[str, Any], tmp_path: Path
) -> None:
    source = write_optimum_folder(tmp_path / "in")
    (source / "config.json").write_text(json.dumps(stated))
    folder = folder_of(source)
    assert folder is not None
    changed, notes = with_layers(folder, 4, [0, 3])
    assert json.loads(changed.edited[Path("config.json")]) == told
    assert bool(notes) == (stated == told)


def test_layers_of_genai_that_look_at_a_window_are_renumbered(tmp_path: Path) -> None:
    source = write_genai_folder(tmp_path / "in")
    config = json.loads((source / "genai_config.json").read_text())
    config["model"]["decoder"]["sliding_window"] = {"layers": [0, 1]}
    (source / "genai_config.json").write_text(json.dumps(config))
    folder = folder_of(source)
    assert folder is not None
    changed, _ = with_layers(folder, 2, [1])
    decoder = json.loads(changed.edited[Path("genai_config.json")])["model"]["decoder"]
    assert (decoder["num_hidden_layers"], decoder["sliding_window"]) == (1, {"layers": [0]})
