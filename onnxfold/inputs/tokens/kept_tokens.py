"""The tokens that a smaller vocabulary keeps, and the tokenizer of these alone.

Texts whose tokens all stay give the same tokens. A byte pair encoding keeps the merges that make each of them; a word
piece or unigram model chooses among fewer pieces what it chose among all.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.errors import ConfigError
from onnxfold.graph.tensors import Array
from onnxfold.inputs.tokens.tokenizer import Tokenizer, pair_of, read_text, tokenizers_library

#: Runtimes compute numbers of tokens fast that are multiples of this.
STEP = 64
#: Bytes that byte pair encodings print as they are; the others are letters from 256 on, in their order.
_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
_BYTES = {chr(b): b for b in _PRINTED} | {chr(256 + i): b for i, b in enumerate(sorted({*range(256)} - {*_PRINTED}))}
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
#: Marks of a piece that stands inside of a word, or in front of one.
_INSIDE, _IN_FRONT = "##", "\u2581"


class Vocabulary:
    """The tokens of a tokenizer, and what they are made of."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        content = tokenizer.content
        self._model: dict[str, Any] = content["model"]
        listed = self._model["vocab"]
        #: Ids by piece.
        self.pieces = {piece: i for i, (piece, _) in enumerate(listed)} if isinstance(listed, list) else dict(listed)
        self._names = {i: piece for piece, i in self.pieces.items()}
        self._ranks = {pair_of(merge): rank for rank, merge in enumerate(self._model.get("merges") or ())}
        self._are_bytes = any('"ByteLevel"' in json.dumps(content.get(part)) for part in ("pre_tokenizer", "decoder"))
        self._ending = self._model.get("end_of_word_suffix") or ""
        framing = (i for ids in _framing(content) for i in ids if type(i) is int)
        self._named = {*tokenizer.added_ids, *framing}  # ids of added tokens, and of those that stand around texts
        self.ids = {*self.pieces.values(), *self._named}

    def needed(self) -> set[int]:
        """Return the ids that any text may need: added tokens, bytes, ASCII characters, the one for unknown words."""
        model = self._model
        ids = {*self._named, self.pieces.get(model.get("unk_token") or "", -1)}
        ids |= {i for piece, i in self.pieces.items() if _BYTE_PIECE.fullmatch(piece)}
        if self._are_bytes:
            ids |= {self.pieces.get(byte, -1) for byte in _BYTES}
        else:
            ids |= {
                i for piece, i in self.pieces.items() if len(text := self._text(piece).strip()) == 1 and text < "\x7f"
            }
        if isinstance(listed := model["vocab"], list):  # the lowest score decides what an unknown character costs
            ids |= {min(range(len(listed)), key=lambda i: listed[i][1]), model.get("unk_id") or 0}
        return ids - {-1}

    def of_scripts(self, scripts: str) -> set[int]:
        """Return the ids of pieces that are written in some scripts; white space and combining marks are of any."""
        library = tokenizers_library()
        names = "".join(rf"\p{{{name}}}" for name in (*scripts.split(","), "Inherited"))
        try:
            removed = library.normalizers.Replace(library.Regex(rf"[\s{names}]+"), "")
        except Exception:  # a binding: plain Exception
            raise ConfigError(f"vocabulary='{scripts[:60]}' is no file, no number, and no Unicode scripts") from None
        return {i for piece, i in self.pieces.items() if (t := self._text(piece)) and not removed.normalize_str(t)}

    def made_of(self, token: int) -> set[int]:
        """Return the ids of a token and of all that merges make on the way to it."""
        if token not in self._names:
            return {token}
        piece = self._names[token]
        parts = [*piece.removesuffix(self._ending)] if self._ranks else []
        if parts and self._ending and piece.endswith(self._ending):
            parts[-1] += self._ending
        made = {piece, *parts}
        while ranks := [
            (rank, i) for i, pair in enumerate(pairwise(parts)) if (rank := self._ranks.get(pair)) is not None
        ]:
            _, i = min(ranks)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
            made.add(parts[i])
        return {self.pieces[part] for part in made if part in self.pieces}

    def _text(self, piece: str) -> str:
        """Return the text of a piece; empty where it is a part of a character."""
        if not self._are_bytes:
            return piece.removeprefix(_INSIDE).replace(_IN_FRONT, " ").removesuffix(self._ending)
        try:
            return bytes(_BYTES[letter] for letter in piece).decode()
        except (KeyError, UnicodeDecodeError):
            return ""


def kept_ids(tokenizer: Tokenizer, keep: int | str | Path, rows: int, named: Collection[int]) -> Array:
    """Return the ids that stay of a table of `rows` rows, ascending, a multiple of 64 of them as far as there are some.

    They are those of a text or of scripts, or common ones; and those that any text, configurations or merges need.
    """
    vocabulary = Vocabulary(tokenizer)
    outside = [i for i in vocabulary.ids if not 0 <= i < rows]
    if outside:
        raise ConfigError(
            f"'{tokenizer.path}' gives the id {max(outside)}, and the model knows {rows:,} ids: give the tokenizer of "
            "this model"
        )
    if tokenizer.content["model"].get("continuing_subword_prefix") and tokenizer.content["model"].get("merges"):
        raise ConfigError(f"'{tokenizer.path}' marks how merged pieces continue, which vocabulary does not know")
    needed = vocabulary.needed() | {i for i in named if 0 <= i < rows}
    if isinstance(keep, int):
        chosen, least = set[int](), keep
    elif os.path.isfile(keep):
        chosen, least = set(tokenizer.ids(read_text(Path(keep))).tolist()), 0
    else:
        chosen, least = vocabulary.of_scripts(str(keep)), 0
    kept = set[int]().union(*map(vocabulary.made_of, needed | chosen))
    if least and len(kept) > least:
        raise ConfigError(f"vocabulary={keep}: {len(kept):,} tokens must stay, for bytes and special tokens; keep more")
    size = min(-(-max(least, len(kept)) // STEP) * STEP, rows)
    # The most common first; at last rows that are no token's.
    for more in map(vocabulary.made_of, np.argsort(-tokenizer.prior(rows), kind="stable").tolist()):
        if len(kept) + len(more - kept) <= size:
            kept |= more
        if len(kept) == size:
            break
    return np.array(sorted(kept), np.int64)


def trimmed_content(content: Mapping[str, Any], new: Mapping[int, int]) -> dict[str, Any]:
    """Return the content of a tokenizer file with some tokens alone, given the new ids of these."""
    trimmed: dict[str, Any] = json.loads(json.dumps(content))
    model = trimmed["model"]
    if isinstance(model["vocab"], list):
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if i in new]
        model["unk_id"] = new.get(model.get("unk_id"))
    else:
        model["vocab"] = {piece: new[i] for piece, i in model["vocab"].items() if i in new}
    if model.get("merges"):
        known = model["vocab"]
        pairs = ((merge, pair_of(merge)) for merge in model["merges"])
        model["merges"] = [m for m, pair in pairs if known.keys() >= {*pair, "".join(pair)}]
    for token in trimmed.get("added_tokens") or ():
        token["id"] = new[token["id"]]
    if trimmed.get("padding"):
        trimmed["padding"]["pad_id"] = new.get(trimmed["padding"]["pad_id"], 0)
    for ids in _framing(trimmed):
        ids[:] = [new.get(i, i) for i in ids]
    return trimmed


def _framing(content: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the lists that hold ids of tokens around texts, in place."""
    steps = content.get("post_processor") or {}
    for step in steps.get("processors", [steps]):
        yield from (token["ids"] for token in (step.get("special_tokens") or {}).values())
        yield from (step[end] for end in ("cls", "sep") if end in step)
