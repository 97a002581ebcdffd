"""Samples that a refinement is shown."""

from itertools import islice

import numpy as np

from onnxfold.folding.after.refine_samples import draw_samples, split_steps
from onnxfold.graph.files.load import load
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import DATA, INVERTED, LEAVES, NOISE
from testing import models

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((8, 3, 32, 32)).astype(np.float32)


def _inputs(kind: str, **values: np.ndarray) -> ModelInputs:  # type: ignore[type-arg]
    return ModelInputs([dict(values)], kind, "for a test")


def _drawn(kind: str, batches: int = 3, seed: int = 0) -> list[np.ndarray]:  # type: ignore[type-arg]
    view = load(models.residual(0))
    (name,) = view.input_names
    return [b[name] for b in islice(draw_samples(view, _inputs(kind, **{name: IMAGES}), 8, seed), batches)]


def test_images_are_varied_anew_in_every_step() -> None:
    before = IMAGES.copy()
    first, second, _ = _drawn(DATA)
    assert first.shape == second.shape == IMAGES.shape
    assert first.dtype == np.float32
    assert not np.array_equal(first, second)
    assert not any(np.array_equal(image, original) for image in first for original in IMAGES)
    np.testing.assert_array_equal(IMAGES, before)
    np.testing.assert_array_equal(first, _drawn(DATA)[0])


def test_images_with_their_channels_last_are_varied_alike() -> None:
    last = np.ascontiguousarray(np.moveaxis(IMAGES, 1, -1))
    drawn = islice(draw_samples(load(models.residual(0)), _inputs(DATA, x=last), 8, 0), 3)
    for batch, wanted in zip(drawn, _drawn(DATA), strict=True):
        np.testing.assert_array_equal(np.moveaxis(batch["x"], -1, 1), wanted)


def test_generated_images_stand_beside_some_of_another_kind() -> None:
    generated, data = (np.concatenate(_drawn(kind, 8)) for kind in (INVERTED, DATA))
    # White noise has no neighbours that are alike; dead leaves have little else.
    alike = [
        [np.corrcoef(x[:, 1:].ravel(), x[:, :-1].ravel())[0, 1] > 0.6 for x in drawn] for drawn in (generated, data)
    ]
    assert np.mean(alike[0]) > 0.1
    assert not any(alike[1])


def test_drawn_inputs_are_drawn_anew() -> None:
    of_three, of_forty = (np.concatenate(_drawn(LEAVES, batches)) for batches in (3, 40))
    assert of_three.shape == (24, *IMAGES.shape[1:])
    # White noise is at hand in the place of the first leaves; painted ones come to stand beside it.
    smooth = [np.corrcoef(x[:, 1:].ravel(), x[:, :-1].ravel())[0, 1] > 0.3 for x in of_forty]
    assert np.mean(smooth[:80]) < np.mean(smooth[-80:])
    model = models.mlp(0)
    (name,) = load(model).input_names
    rows = RANDOM.standard_normal((8, *models.random_input(model, 0)[name].shape[1:])).astype(np.float32)
    batches = [b[name] for b in islice(draw_samples(load(model), _inputs(NOISE, **{name: rows}), 4, 0), 6)]
    assert [batch.shape for batch in batches] == [(4, *rows.shape[1:])] * 6
    assert len(np.unique(np.concatenate(batches), axis=0)) == 24


def test_other_inputs_are_shown_as_they_are_each_before_one_is_again() -> None:
    rows = RANDOM.standard_normal((12, 5)).astype(np.float32)
    inputs = _inputs(DATA, x=rows)
    batches = list(islice(draw_samples(load(models.residual(0)), inputs, 4, 0), 6))
    assert [len(b["x"]) for b in batches] == [4] * 6
    for turn in (batches[:3], batches[3:]):
        np.testing.assert_array_equal(np.sort(np.concatenate([b["x"] for b in turn]), 0), np.sort(rows, 0))
    assert len(split_steps(inputs.batches, inputs, 5)) == 3
