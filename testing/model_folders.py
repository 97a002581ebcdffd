"""Tiny folders of language models, as onnxruntime-genai's builder and optimum write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

from testing.genai_models import HEADS, LONGEST, SIZE, Kind, genai_decoder
from testing.language_models import HEADS as DECODER_HEADS
from testing.language_models import WIDTH, WORDS, decoder, write_tokenizer

LAYERS, SHARED = 2, 3
#: What no configuration knows: it is copied as it is.
UNKNOWN = {"NOTICE.txt": b"as it is\n", "chat/template.jinja": b"{{ messages }}"}


def genai_config() -> dict[str, Any]:
    """Return what the builder writes for :func:`testing.genai_models.genai_decoder`."""
    caches = {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
    presents = {f"present_{part}_names": f"present.%d.{part}" for part in ("key", "value")}
    decodes = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": SIZE,
        "hidden_size": WIDTH,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **caches},
        "outputs": {"logits": "logits", **presents},
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": SHARED,
    }
    ids = {"bos_token_id": 0, "eos_token_id": WORDS - 1, "pad_token_id": WORDS - 1}
    return {
        "model": {**ids, "context_length": LONGEST, "decoder": decodes, "type": "llama", "vocab_size": WORDS},
        "search": {"do_sample": False, "max_length": LONGEST, "num_beams": 1, "past_present_share_buffer": True},
    }


def write_genai_folder(folder: Path, kind: Kind = "packed", *, external: bool = True) -> Path:
    """Write a model with grouped queries and a cache, its configuration, a tokenizer, and files that nobody knows."""
    folder.mkdir()
    model = genai_decoder(kind, layers=LAYERS, shared=SHARED)
    for info in (*model.graph.input, *model.graph.output):
        if len(dims := info.type.tensor_type.shape.dim) == 4:
            dims[3].dim_param = "head_size"  # which the builder does not state
    options: dict[str, Any] = {"save_as_external_data": True, "location": "model.onnx.data"} if external else {}
    onnx.save(model, folder / "model.onnx", **options)
    (folder / "genai_config.json").write_text(json.dumps(genai_config(), indent=4))
    _write_others(folder)
    return folder


def write_optimum_folder(folder: Path) -> Path:
    """Write a model with decomposed attention and a cache, as optimum exports it for text generation."""
    folder.mkdir()
    onnx.save(decoder(layers=LAYERS), folder / "model.onnx")
    heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), DECODER_HEADS)
    config = {"model_type": "llama", "num_hidden_layers": LAYERS, "vocab_size": WORDS, "hidden_size": WIDTH, **heads}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_others(folder)
    return folder


def _write_others(folder: Path) -> None:
    write_tokenizer(folder / "tokenizer.json")
    for name, content in UNKNOWN.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
