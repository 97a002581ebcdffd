"""Inputs and labels from a user, checked before any run."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import helper

from onnxfold.errors import ConfigError
from onnxfold.graph.run.session import InputInfo, in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.statistics.activations import Batches

#: Names that an array of labels may have, and the array of a model's only input beside its own name.
LABELS, SAMPLES = ("y", "labels"), ("x", "images")


@dataclass(frozen=True, eq=False)
class UserSamples:
    """Samples in the types of a model's inputs."""

    arrays: dict[str, Array]  # arrays named after the inputs, samples along axis 0
    labels: Array | None = None  # the labels beside them, as they were given
    reason: str = "the given samples"  # origin of the samples, for reports
    notes: tuple[str, ...] = ()


def input_infos(view: GraphView) -> list[InputInfo]:
    """Return name, type and shape of every input of a network."""
    infos = []
    for name in view.input_names:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(view.elem_type(name) or 1))
        infos.append(InputInfo(name, dtype, view.shape(name) or ()))
    return infos


def without_labels(inputs: list[InputInfo], user_arrays: Mapping[str, Array]) -> tuple[dict[str, Array], Array | None]:
    """Return a user's arrays by the names of inputs, and the labels if there are any.

    Labels are called `y` or `labels`. The samples of a model with one input may be called `x` or `images` instead of
    after the input.
    """
    arrays, names = dict(user_arrays), {info.name for info in inputs}
    labels = [arrays.pop(name) for name in LABELS if name in arrays and name not in names]
    if len(labels) > 1:
        raise ConfigError(f"the data has the arrays {' and '.join(map(repr, LABELS))}: keep the one with the labels")
    sample_names = [name for name in SAMPLES if name in arrays]
    if len(names) == 1 and not names & arrays.keys() and sample_names:
        if len(sample_names) > 1:
            raise ConfigError(
                f"the data has the arrays {' and '.join(map(repr, sample_names))}: keep the one with the inputs"
            )
        arrays[inputs[0].name] = arrays.pop(sample_names[0])
    return arrays, labels[0] if labels else None


def checked_inputs(inputs: list[InputInfo], user_arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return a user's arrays in the model's types."""
    if not isinstance(user_arrays, Mapping):
        raise ConfigError(f"inputs are a mapping of names to arrays, not {type(user_arrays).__name__}")
    feeds = {}
    for info in inputs:
        if info.name not in user_arrays:
            raise ConfigError(f"the data has no array '{info.name}': name the arrays after the model's inputs")
        values = _array(f"array '{info.name}'", user_arrays[info.name])
        fits = values.ndim == len(info.shape) and all(
            d is None or d == v for d, v in zip(info.shape[1:], values.shape[1:], strict=True)
        )
        if not fits:
            expected = ", ".join("any" if d is None else str(d) for d in info.shape)
            raise ConfigError(
                f"array '{info.name}' has the shape {list(values.shape)}, but the model takes [{expected}]"
            )
        if not values.size:
            raise ConfigError(f"array '{info.name}' of the shape {list(values.shape)} holds no samples")
        if info.shape and info.shape[0] is not None and len(values) % info.shape[0]:
            raise ConfigError(
                f"array '{info.name}' has {len(values)} samples, the model's fixed batch is {info.shape[0]}"
            )
        feeds[info.name] = _as_input_type(info, values)
    if len({len(v) for v in feeds.values() if v.ndim}) > 1:
        raise ConfigError("the arrays of the data have different numbers of samples")
    return feeds


def checked_labels(labels: object, samples: int) -> Array:
    """Return class numbers as integers of the shape (samples,)."""
    values = _array("the labels 'y'", labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 2:
        raise ConfigError(
            f"the labels 'y' have the shape {list(values.shape)}: give one class number per sample, "
            "of one-hot labels y.argmax(axis=1)"
        )
    if values.shape != (samples,):
        raise ConfigError(f"the labels 'y' have the shape {list(values.shape)}, and there are {samples} samples")
    if values.dtype.kind == "f" and not np.array_equal(values, np.round(values)):  # NaN is unlike itself
        raise ConfigError("the labels 'y' are not whole numbers: give one class number per sample")
    if values.dtype.kind == "b" or values.min(initial=0) < 0:
        raise ConfigError("the labels 'y' are not class numbers, which start at 0")
    return values.astype(np.int64)


def _array(what: str, values: object) -> Array:
    try:
        array: Array = np.asarray(values)
    except (ValueError, TypeError) as error:  # lists of lists of different lengths, for one
        raise ConfigError(f"{what} cannot be read as an array: {error}") from None
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ConfigError(f"{what} is of the type {array.dtype}: give real numbers")
    return array


def _as_input_type(info: InputInfo, values: Array) -> Array:
    """Return values in the type of an input, which must be able to hold them."""
    is_float = info.dtype.kind not in "biu"
    if values.dtype.kind not in "biu" and np.isnan(values).any():
        raise ConfigError(f"array '{info.name}' holds NaN: remove these samples")
    if values.dtype == info.dtype:
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(info.dtype)
    same = np.isfinite(cast) == np.isfinite(values) if is_float else cast == values
    if not same.all():
        raise ConfigError(f"array '{info.name}' holds values that the model's type {info.dtype} cannot hold")
    return cast


_BATCH = 64
#: A user's samples that no fold is shown: one of so many, at most so many, where there are so many at least. Those that
#: a fold was fitted on agree too well where they are few for the widths of its layers.
_ONE_OF, _MOST_HELD_OUT, _LEAST_GIVEN = 5, 64, 64


def split_samples(arrays: dict[str, Array], fixed: int | None) -> tuple[dict[str, Array], Batches]:
    """Return the samples that a fold is shown, and whole batches that are held out, spread over all samples."""
    batch = fixed or 1
    count, batches = sample_count(arrays), sample_count(arrays) // batch
    held = min(batches // _ONE_OF, max(_MOST_HELD_OUT // batch, 1))
    if count < _LEAST_GIVEN or not held or any(v.ndim and len(v) != count for v in arrays.values()):
        return arrays, []
    apart = np.zeros(batches, bool)
    apart[((np.arange(held) + 0.5) * batches / held).astype(int)] = True
    apart = np.repeat(apart, batch)
    return select_samples(arrays, ~apart), list(in_batches(select_samples(arrays, apart), fixed or _BATCH))


def select_samples(arrays: dict[str, Array], samples: Array) -> dict[str, Array]:
    """Return some samples of arrays, by their indices or a mask; scalars belong to all."""
    return {name: values[samples] if values.ndim else values for name, values in arrays.items()}


def quarters(batch: dict[str, Array]) -> Batches:
    """Cut a batch into four; inputs without a batch axis stay in every part."""
    return list(in_batches(batch, max(-(-sample_count(batch) // 4), 1)))
