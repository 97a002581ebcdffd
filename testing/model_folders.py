"""Tiny folders of language models, as onnxruntime-genai's builder and optimum write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

from testing.language_models import SIZE, WIDTH, WORDS, decoder, grouped_query_decoder, write_tokenizer

LAYERS, HEADS, SHARED = 2, 6, 3
#: What no configuration knows: it is copied as it is.
UNKNOWN = {"NOTICE.txt": b"as it is\n", "chat/template.jinja": b"{{ messages }}"}


def genai_config(*, heads: int = HEADS, shared: int = SHARED, layers: int = LAYERS) -> dict[str, Any]:
    """Return what the builder writes for :func:`testing.language_models.grouped_query_decoder`."""
    caches = {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
    presents = {f"present_{part}_names": f"present.%d.{part}" for part in ("key", "value")}
    decodes = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": SIZE,
        "hidden_size": WIDTH,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **caches},
        "outputs": {"logits": "logits", **presents},
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": shared,
    }
    ids = {"bos_token_id": 0, "eos_token_id": WORDS - 1, "pad_token_id": WORDS - 1}
    return {
        "model": {**ids, "context_length": 64, "decoder": decodes, "type": "llama", "vocab_size": WORDS},
        "search": {"do_sample": False, "max_length": 64, "num_beams": 1, "past_present_share_buffer": True},
    }


def write_genai_folder(folder: Path, *, seed: int = 0, external: bool = True) -> Path:
    """Write a model with grouped queries and a cache, its configuration, a tokenizer, and files that nobody knows."""
    folder.mkdir()
    model = grouped_query_decoder(seed, layers=LAYERS, heads=HEADS, shared=SHARED, rotary=True, free_size=True)
    options: dict[str, Any] = {"save_as_external_data": True, "location": "model.onnx.data"} if external else {}
    onnx.save(model, folder / "model.onnx", **options)
    (folder / "genai_config.json").write_text(json.dumps(genai_config(), indent=4))
    _write_others(folder)
    return folder


def write_optimum_folder(folder: Path, *, seed: int = 0) -> Path:
    """Write a model with decomposed attention and a cache, as optimum exports it for text generation."""
    folder.mkdir()
    onnx.save(decoder(seed, layers=LAYERS), folder / "model.onnx")
    heads = WIDTH // SIZE
    shape = {"hidden_size": WIDTH, "num_attention_heads": heads, "num_key_value_heads": heads}
    config = {"model_type": "llama", "num_hidden_layers": LAYERS, "vocab_size": WORDS, **shape}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_others(folder)
    return folder


def _write_others(folder: Path) -> None:
    write_tokenizer(folder / "tokenizer.json")
    for name, content in UNKNOWN.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
