"""Tokens that a language model writes: by onnxruntime-genai, and by a loop over onnxruntime alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort


def by_genai(folder: Path, ids: Sequence[int], length: int) -> list[int]:
    """Return ids and the tokens that follow them, the likeliest each time, by the runtime that the folder is for."""
    import onnxruntime_genai as og

    model = og.Model(str(folder))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.array([ids], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(i) for i in generator.get_sequence(0)]


def by_loop(
    folder: Path, ids: Sequence[int], length: int, *, end: int | None = None, keeps_past: bool = True
) -> list[int]:
    """Return the same with nothing but onnxruntime: the model is fed its own past, and never with `end`.

    Parameters
    ----------
    folder : Path
        The folder.
    ids : sequence of int
        The beginning.
    length : int
        Tokens altogether.
    end : int, optional
        A token that is never chosen; that of the folder's configuration by default, where it has one.
    keeps_past : bool
        Whether the model is fed its own past; otherwise it reads everything again for every token.
    """
    size = 0
    if (folder / "genai_config.json").exists():
        config = json.loads((folder / "genai_config.json").read_text())["model"]
        end, size = config["eos_token_id"] if end is None else end, config["decoder"]["head_size"]
    session = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    shapes = {i.name: i.shape for i in session.get_inputs() if i.name.startswith("past_key_values.")}
    sizes = {name: shape[3] if isinstance(shape[3], int) else size for name, shape in shapes.items()}
    caches = {name: np.zeros((1, shapes[name][1], 0, sizes[name]), np.float32) for name in shapes}
    outputs = [output.name for output in session.get_outputs()]
    written, new = list(ids), list(ids)
    while len(written) < length:
        feeds = {"input_ids": np.array([new], np.int64), "attention_mask": np.ones((1, len(written)), np.int64)}
        if any(i.name == "position_ids" for i in session.get_inputs()):
            feeds["position_ids"] = np.arange(len(written))[None, -len(new) :]
        found = dict(zip(outputs, session.run(None, feeds | caches), strict=True))
        if keeps_past:
            caches = {name: found[name.replace("past_key_values", "present")] for name in caches}
        scores = found["logits"][0, -1].copy()
        if end is not None:
            scores[end] = -np.inf
        written.append(int(scores.argmax()))
        new = written[-1:] if keeps_past else written
    return written
