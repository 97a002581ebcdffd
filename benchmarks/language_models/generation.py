"""Texts that decoders write, and how fast onnxruntime-genai writes them."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np

from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.tokenizer import Tokenizer

PROMPTS = ("The capital of France is", "To bake a loaf of bread, you need", "Once upon a time, there was a little")
_LONGEST = 24
#: Runs of either model, the prompt's tokens, and how long a text is altogether.
_ROUNDS, _PROMPT, _TOKENS = 9, 8, 64


def written(model: Path, tokenizer: Tokenizer) -> list[str]:
    """Return the likeliest continuation of every prompt, the model reading everything again for every token."""
    from tokenizers import Tokenizer as Decoder

    session, view = Session(model), load(model)
    interface = token_interface(view)  # which tells the sizes of caches that a file leaves open
    assert interface is not None
    reader, decoder = TokenSource(view, interface).model(session), Decoder.from_file(str(tokenizer.path))
    found = []
    for prompt in PROMPTS:
        ids = [int(i) for i in (*tokenizer.frame[0], *tokenizer.ids(prompt))]
        begin = len(ids)
        for _ in range(_LONGEST):
            following = int(reader.all_scores(np.array([ids]))[0, -1].argmax())
            if following in tokenizer.special:
                break
            ids.append(following)
        found.append(" ".join(decoder.decode(ids[begin:]).split()))
    return found


def speed(before: Path, after: Path) -> dict[str, float]:
    """Return tokens per second of two folders in onnxruntime-genai, measured in turn; nothing if it does not run them.

    The ratio is the median over rounds, so what else the machine does meets both alike.
    """
    if not all((folder / "genai_config.json").exists() for folder in (before, after)):
        return {}
    try:
        import onnxruntime_genai as genai
    except ImportError:
        return {}
    models = [genai.Model(str(folder)) for folder in (before, after)]
    rounds = []
    for number in range(_ROUNDS + 1):
        seconds = []
        for model in models:
            settings = genai.GeneratorParams(model)
            settings.set_search_options(max_length=_TOKENS, min_length=_TOKENS, do_sample=False)
            generator = genai.Generator(model, settings)
            generator.append_tokens(np.arange(2, 2 + _PROMPT, dtype=np.int32)[None])
            start = time.perf_counter()
            steps = 0
            while not generator.is_done():
                generator.generate_next_token()
                steps += 1
            seconds.append((time.perf_counter() - start) / steps)
        if number:  # the first round warms up
            rounds.append(seconds)
    a, b = (median(pair[i] for pair in rounds) for i in (0, 1))
    return {"before": 1.0 / a, "after": 1.0 / b, "ratio": median(pair[0] / pair[1] for pair in rounds)}
