"""EleutherAI's lm-evaluation-harness over a folder of a decoder, run by onnxruntime with the graph's own cache.

Usage: PYTHON harness.py DIR --data DIR [--questions N] --out FILE.json

PYTHON is that of an environment with `pip install lm-eval datasets onnxruntime tokenizers`; nothing of this project is
imported. DIR with data holds boolq_eraser_dev.jsonl, winogrande_dev.jsonl, arc_easy_test.jsonl and
arc_challenge_test.jsonl; the first N questions of each are asked, as the harness's own tasks ask them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from tokenizers import Tokenizer

Request = tuple[tuple[str, str], list[int], list[int]]
Feeds = dict[str, npt.NDArray[Any]]

_QUESTION = {"output_type": "multiple_choice", "test_split": "test", "num_fewshot": 0}


def _after_gap(doc: dict[str, Any]) -> str:
    return str(doc["sentence"].partition("_")[2].strip())


def _before_gap(doc: dict[str, Any]) -> list[str]:
    return [doc["sentence"].partition("_")[0] + option for option in doc["options"]]


def _right_option(doc: dict[str, Any]) -> int:
    return int(doc["answer"])  # for tasks that score the same end after several beginnings, doc_to_text says which


_ARC = {
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{labels.index(answer)}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
#: What differs from the harness's own files: where questions are, and the names of their fields.
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "boolq": (
        "boolq_eraser_dev.jsonl",
        {
            "doc_to_text": "{{passage}}\nQuestion: {{question}}?\nAnswer:",
            "doc_to_choice": ["no", "yes"],
            "doc_to_target": "{{answer|int}}",
            "metric_list": [{"metric": "acc"}],
        },
    ),
    "winogrande": (
        "winogrande_dev.jsonl",
        {
            "doc_to_text": _right_option,
            "doc_to_choice": _before_gap,
            "doc_to_target": _after_gap,
            "metric_list": [{"metric": "acc"}],
        },
    ),
    "arc_easy": ("arc_easy_test.jsonl", _ARC),
    "arc_challenge": ("arc_challenge_test.jsonl", _ARC),
}


class OnnxDecoder(TemplateLM):  # type: ignore[misc]
    """A decoder as onnxruntime-genai's builder writes it: past_key_values.* and present.* beside ids and scores.

    Parameters
    ----------
    folder : Path
        model.onnx, tokenizer.json and genai_config.json lie in it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        settings = ort.SessionOptions()
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(folder / "model.onnx", settings, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        said = json.loads((folder / "genai_config.json").read_text())["model"]
        self._end, decoder = said["bos_token_id"], said["decoder"]
        self._names = [info.name for info in self._session.get_inputs()]
        self._outputs = [info.name for info in self._session.get_outputs()]
        self._empty = {
            info.name: np.zeros((1, decoder["num_key_value_heads"], 0, decoder["head_size"]), np.float32)
            for info in self._session.get_inputs()
            if info.name.startswith("past_key_values")
        }

    @property
    def eot_token_id(self) -> int:
        """Token that stands for an empty context."""
        return int(self._end)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the ids of a text, without a frame."""
        ids: list[int] = self._tokenizer.encode(string, add_special_tokens=False).ids
        return ids

    def _run(self, ids: Sequence[int], past: Feeds) -> tuple[npt.NDArray[np.float32], Feeds]:
        """Return the scores behind every token, of shape (tokens, words), and the cache with them."""
        before = next(iter(past.values())).shape[2]
        length = before + len(ids)
        values = past | {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, length), np.int64),
            "position_ids": np.arange(before, length, dtype=np.int64)[None],
        }
        results = self._session.run(self._outputs, {name: values[name] for name in self._names})
        named = dict(zip(self._outputs, results, strict=True))
        cache = {name: named[name.replace("past_key_values", "present")] for name in past}
        return named["logits"][0], cache

    def _loglikelihood_tokens(self, requests: list[Request], **_: Any) -> list[tuple[float, bool]]:
        """Score continuations; what several of them follow is read once."""
        found: dict[int, tuple[float, bool]] = {}
        order = sorted(range(len(requests)), key=lambda i: requests[i][1])
        for context, members in groupby(order, key=lambda i: requests[i][1]):
            past = self._empty if len(context) == 1 else self._run(context[:-1], self._empty)[1]
            for i in members:
                wanted = np.array(requests[i][2])
                scores, _cache = self._run([context[-1], *wanted[:-1].tolist()], past)
                scores = scores.astype(np.float64)
                top = scores.max(axis=1)
                chosen = scores[np.arange(len(wanted)), wanted]
                logs = chosen - top - np.log(np.exp(scores - top[:, None]).sum(axis=1))
                found[i] = float(logs.sum()), bool((chosen == top).all())
        return [found[i] for i in range(len(requests))]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Refuse: none of the tasks asks for it."""
        raise NotImplementedError

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Refuse: none of the tasks asks for it."""
        raise NotImplementedError


def asked_tasks(data: Path) -> Iterator[dict[str, Any]]:
    """Yield the harness's descriptions of the tasks, on local files."""
    for name, (file, fields) in TASKS.items():
        place = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data / file)}}}
        yield {"task": name, **place, **_QUESTION, **fields}


def main() -> None:
    """Ask, and write accuracies with their standard errors, in percent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    answered = simple_evaluate(
        OnnxDecoder(options.folder), tasks=list(asked_tasks(options.data)), limit=options.questions,
        bootstrap_iters=0, log_samples=False,
    )  # fmt: skip
    results = {
        task: {"acc": 100 * values["acc,none"], "questions": answered["n-samples"][task]["effective"]}
        for task, values in answered["results"].items()
    }
    options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
