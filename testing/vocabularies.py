"""Folders of tiny decoders and encoders whose words are those of trained tokenizers, in three families."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import numpy_helper
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from testing.language_models import WIDTH, decoder, encoder

Family = Literal["bytes", "bytes-ignoring-merges", "pieces", "unigram", "word-ends"]
LATIN = (
    "the quick brown fox jumps over the lazy dog, and the dog did not mind. Quite a number of words return: the fox, "
    "the dog, the number 1234 and 5678. Nothing else matters here; words are words. She sells sea shells on the sea "
    "shore, whether the weather is fine or whether the weather is not. Un été à la mer, déjà vu, garçon! "
)
OTHERS = (
    "быстрая лиса прыгает через ленивую собаку, и собака не против. слова есть слова. "
    "η γρήγορη αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. 敏捷的棕色狐狸跳过了懒狗。狗不介意。"
)
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")


@cache
def train(family: Family, *, words: int = 480) -> Tokenizer:
    """Return a tokenizer that learned the texts above, with special tokens and a frame of them."""
    common: dict[str, Any] = {"special_tokens": list(SPECIAL), "show_progress": False, "vocab_size": words}
    trainer: Any
    if family == "pieces":
        made = Tokenizer(models.WordPiece(unk_token=SPECIAL[0]))
        made.normalizer, made.pre_tokenizer = normalizers.NFC(), pre_tokenizers.BertPreTokenizer()
        made.decoder, trainer = decoders.WordPiece(), trainers.WordPieceTrainer(**common)
    elif family == "unigram":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token=SPECIAL[0], **common)
    elif family == "word-ends":
        made = Tokenizer(models.BPE(unk_token=SPECIAL[0], end_of_word_suffix="</w>"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder()
        trainer = trainers.BpeTrainer(end_of_word_suffix="</w>", **common)
    else:
        made = Tokenizer(models.BPE(ignore_merges=family != "bytes"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **common)
    made.train_from_iterator([LATIN, OTHERS] * 3, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(text, made.token_to_id(text)) for text in SPECIAL[1:3]]
    )
    return made


def write_folder(folder: Path, family: Family, *, is_encoder: bool = False, tied: bool = False, spare: int = 5) -> Path:
    """Write a model with a row per token and some spare ones, its tokenizer and its configurations."""
    folder.mkdir()
    tokenizer = train(family)
    tokenizer.save(str(folder / "tokenizer.json"))
    words = tokenizer.get_vocab_size() + spare
    onnx.save(
        with_words(encoder(head=not is_encoder) if is_encoder else decoder(layers=1), words, tied=tied),
        folder / "model.onnx",
    )
    ids = {
        f"{name}_token_id": tokenizer.token_to_id(text)
        for name, text in zip(("bos", "eos", "pad"), SPECIAL[1:], strict=True)
    }
    config = {"model_type": "llama", "vocab_size": words, "hidden_size": WIDTH, **ids}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    eos = [ids["eos_token_id"], ids["pad_token_id"]]
    generation = {"eos_token_id": eos, "suppress_tokens": [words - 1, eos[0]], "temperature": 0.7}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    added = {str(i): {"content": text, "special": True} for i, text in enumerate(SPECIAL)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added, "model_max_length": 64}))
    (folder / "vocab.txt").write_text("".join(f"{tokenizer.id_to_token(i)}\n" for i in range(words - spare)))
    (folder / "tokenizer.model").write_bytes(b"all words")
    return folder


def with_words(model: onnx.ModelProto, words: int, *, tied: bool = False) -> onnx.ModelProto:
    """Return a model with another number of words; with `tied`, scores are products with the turned table."""
    random = np.random.default_rng(1)
    for weight in model.graph.initializer:
        if weight.name in ("embedding", "words_w"):
            weight.CopyFrom(
                numpy_helper.from_array(random.standard_normal((words, WIDTH)).astype(np.float32), weight.name)
            )
        elif weight.name == "head":
            head = (0.5 * random.standard_normal((WIDTH, words))).astype(np.float32)
            weight.CopyFrom(numpy_helper.from_array(head, weight.name))
    for node in model.graph.node if tied else ():
        if "head" in node.input:
            turned = onnx.helper.make_node("Transpose", ["embedding"], ["turned"], perm=[1, 0])
            node.input[1] = "turned"
            model.graph.node.insert(0, turned)
            break
    for output in model.graph.output:
        if output.name == "logits":
            output.type.tensor_type.shape.dim[2].dim_value = words
    return model
