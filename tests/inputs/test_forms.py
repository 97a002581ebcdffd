"""One network folds alike in whatever form it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxfold
from onnxfold.graph.run.session import Session
from testing.forms import FORMS, Form, written_as
from testing.models import chain_conv

#: Forms that take images in pixels: generated ones end where pixels do, so that folds are alike in part.
SCALED = [form for form in FORMS if "pixels" in form or "bytes" in form]
#: A pad of zeros is black there, and not grey.
BLACK = [form for form in FORMS if "first layer" in form]


def _images() -> np.ndarray[Any, np.dtype[np.float32]]:
    return (0.5 * np.random.default_rng(3).standard_normal((16, 3, 8, 8))).astype(np.float32)


def _answers(model: Any, form: Form) -> np.ndarray[Any, Any]:
    session = Session(model)
    return session.run_in_batches({session.inputs[0].name: form.feed(_images())})[0]


@pytest.mark.parametrize("name", [form for form in FORMS if form not in BLACK])
def test_forms_compute_the_same(name: str) -> None:
    model = chain_conv(0, bn=False)
    form, plain = written_as(model, name), written_as(model, "as it is")
    wanted, answers = _answers(plain.model, plain), _answers(form.model, form)
    if name == "ArgMax behind":
        np.testing.assert_array_equal(answers, wanted.argmax(axis=1))
    elif name == "Softmax behind":
        np.testing.assert_array_equal(answers.argmax(axis=1), wanted.argmax(axis=1))
    else:
        rounded = 0.02 if "bytes" in name or "int8" in name else 1e-4
        assert np.abs(answers - wanted).max() <= rounded * np.abs(wanted).max()


@pytest.mark.parametrize("name", [form for form in FORMS if form not in (*BLACK, "Softmax behind", "ArgMax behind")])
def test_forms_fold_alike(name: str) -> None:
    model = chain_conv(0, bn=False)
    options: dict[str, Any] = {
        "channel_ratio": 0.25,
        "inputs": "dead-leaves",
        "samples": 64,
        "verify": False,
        "cache": None,
    }
    form, plain = written_as(model, name), written_as(model, "as it is")
    wanted, answers = (_answers(onnxfold.fold(f.model, **options).model, f) for f in (plain, form))
    most = 0.3 if name in SCALED else 0.05
    assert np.square(answers - wanted).mean() <= most**2 * wanted.var()
