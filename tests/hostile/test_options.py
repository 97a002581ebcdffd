"""Options in Python: typed errors of one plain line, for a wrong type, a wrong value and a wrong name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold import api, merging
from onnxfold.config import FoldConfig
from onnxfold.config.fold_options import FoldOptions, MergeOptions
from onnxfold.edge_bench.bench import bench
from onnxfold.errors import ConfigError, ModelLoadError, OnnxFoldError, OptionTypeError
from onnxfold.export import to_tflite
from testing import models
from tests.hostile.conftest import Command

NET = models.chain_conv(0)
INT_ARRAY = np.arange(3)


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError


WRONG_TYPES: dict[str, list[Any]] = {
    "sparsity": ["0.5", True, [0.5], 0.5j, Rude()],
    "channel_ratio": ["0.5", False, {}],
    "min_fidelity": ["high", b"0.9"],
    "data": [3, [INT_ARRAY], b"x.npz"],
    "max_drop": ["1", True, [1.0]],
    "ratios": ["a=0.5", [("a", 0.5)], {"a": "0.5"}, {"a": None}, {1: 0.5}, None],
    "method": [None, 3, b"fold-ls"],
    "cluster": [3, True],
    "repair": [3, ["none"]],
    "allocation": [None, 1],
    "max_params": [1.5e6, True, b"1M", [1]],
    "max_macs": [1.5],
    "max_ram": [True],
    "max_flash": [{}],
    "max_latency": [True, [1], b"1ms", {}],
    "tolerance": ["5", None, True],
    "latency_table": [3, True, [{}], b"t.json"],
    "max_memory": [2.5, True],
    "device": [3, True, ["esp-eye"]],
    "inputs": [None, 3, {"x": 1}],
    "samples": [1.5, "512", True, INT_ARRAY],
    "input_seconds": ["60", True, [60]],
    "input_steps": [3, "30", None, [1.5], ["30"], [True]],
    "calibration": [3, [INT_ARRAY], INT_ARRAY, b"x.npz"],
    "tokenizer": [3, True, b"t.json", {}],
    "vocabulary": [True, 2.5, b"latin", {}],
    "mean": ["0.5", True, ["0.5"], b"1"],
    "std": ["0.5", True, [None]],
    "channels": [None, 3, ["bgr"]],
    "round_to": [2.0, "2", True, None, "Auto", INT_ARRAY],
    "objective": [None, 1, ["macs"]],
    "keep": ["conv*", b"conv", 3, [3], {"conv": 1}, None],
    "input_shapes": ["x:1,3", [("x", (1, 3))], {"x": "1,3"}, {"x": 3}, {"x": (1.5, 3)}, {"x": (True,)}, {3: (1,)}],
    "allow_cache_change": [1, "yes", None],
    "per_layer_cache": [1, "yes", None],
    "drop_blocks": [1.0, True, "2", "all"],
    "refine": [1, True, None],
    "refine_steps": [1.5, "200", True],
    "torch_device": [None, 0, ["cpu"]],
    "lossless": [1, "yes", None],
    "dtype": [None, 8, b"int8"],
    "seed": [1.5, "0", True, None],
    "verify": [1, "no", None],
    "threads": [1.0, "1", True, None],
    "save_as_external_data": [1, "yes", None],
    "cache": [True, 3, b"folder", ["folder"]],
}
WRONG_VALUES: dict[str, list[Any]] = {
    "sparsity": [0, 1, -0.1, 1.5, float("nan"), float("inf"), 10**400],
    "channel_ratio": [1, -0.1, float("nan")],
    "min_fidelity": [0.0, 1.0, -1],
    "max_drop": [-1, float("nan"), 101, 1.0],
    "data": [{}],
    "ratios": [{"a": 1.0}, {"a": float("nan")}],
    "allocation": ["best"],
    "inputs": ["data", "x.npy"],
    "samples": [0, -1, 10**12, 10**5000],
    "input_seconds": [0, -1.0, float("nan"), float("inf"), 10**400],
    "input_steps": [[0], [30, -1], [10**12]],
    "round_to": [0, -1, 10**12],
    "per_layer_cache": [True],
    "drop_blocks": [0, -1, 10**12],
    "channels": ["RGB", "gbr", "", "bgr"],
    "dtype": ["float32", "INT8", "int4", ""],
    "objective": ["size", ""],
    "refine": ["ALL", "weights"],
    "refine_steps": [0, -1, 10**12, 5],
    "torch_device": ["gpu", "", "cpu"],
    "seed": [-1, 2**31, 2**64],
    "threads": [0, -1, 10**12],
    "max_params": [0, -1, 10**5000],
    "max_latency": [0, -1.0, float("nan"), float("inf"), 10**400, "0x", "2x", "soon"],
    "tolerance": [0, -1.0, float("nan"), 101, 10**400],
    "latency_table": [{}, "absent.json"],
    "max_memory": ["lots", 0],
    "cache": ["", "a\0b"],
    "input_shapes": [{"x": (0, 3)}, {"x": (-1,)}, {"x": (2**31,)}, {"x": (10**5000,)}],
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_a_wrong_type_is_a_type_error(name: str) -> None:
    assert {f.name for f in fields(FoldConfig)} == set(WRONG_TYPES)
    for value in WRONG_TYPES[name]:
        with pytest.raises(OptionTypeError) as error:
            onnxfold.fold(NET, **{name: value})
        assert isinstance(error.value, TypeError | ValueError)
        assert len(str(error.value)) < 200
        assert str(error.value).isprintable()


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_value_is_a_value_error(name: str) -> None:
    for value in WRONG_VALUES[name]:
        with pytest.raises(ConfigError) as error:
            onnxfold.fold(NET, **{name: value})
        assert len(str(error.value)) < 200


def test_numbers_of_numpy_are_numbers() -> None:
    config = FoldConfig(
        sparsity=np.float32(0.5), seed=np.int64(3), round_to=np.uint8(2), verify=np.bool_(False),
        input_shapes={"x": np.array([1, 3])}, ratios={"a": np.float16(0.5)}, keep=np.array(["b"]), max_ram=np.int32(9),
    )  # fmt: skip
    kept = [config.sparsity, config.seed, config.round_to, config.verify, config.input_shapes["x"][1], config.max_ram]
    assert [type(value) for value in kept] == [float, int, int, bool, int, int]
    assert config.to_dict()["keep"] == ["b"]


@pytest.mark.parametrize(
    ("function", "own", "table"),
    [
        (api.fold, {"model", "progress"}, {"sparsity": float | None, **get_type_hints(FoldOptions)}),
        (merging.merge, {"models", "progress", "width", "heads", "labels", "until"}, get_type_hints(MergeOptions)),
    ],
)
def test_options_are_spelled_as_in_the_configuration(
    function: Callable[..., Any], own: set[str], table: dict[str, Any]
) -> None:
    told = {n: p for n, p in signature(function).parameters.items() if n not in own}
    known = {f.name: f for f in fields(FoldConfig) if f.name in told or function is api.fold}
    assert list(told) == list(known)
    assert {name: table[name] for name in told} == {name: get_type_hints(FoldConfig)[name] for name in told}
    for name, field in known.items():
        default = field.default if field.default_factory is MISSING else field.default_factory()
        assert told[name].default == default, name
        assert name in (function.__doc__ or ""), f"help(onnxfold.{function.__name__}) does not say what {name} is"
        assert f"{name}" in (FoldConfig.__doc__ or "")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: onnxfold.fold(NET, sparcity=0.5), "did you mean sparsity?"),  # type: ignore[call-arg]
        (lambda: onnxfold.fold(NET, calibraton={}), "did you mean calibration?"),  # type: ignore[call-arg]
        (lambda: onnxfold.fold(NET, zzz=1), "help(onnxfold.fold)"),  # type: ignore[call-arg]
        (lambda: onnxfold.inspect(NET, inputshapes={}), "did you mean input_shapes?"),  # type: ignore[call-arg]
        (lambda: onnxfold.compare(NET, NET, sed=1), "did you mean seed?"),  # type: ignore[call-arg]
        (lambda: to_tflite(NET, "x", backnd="direct"), "did you mean backend?"),
        (lambda: bench(["m"], repeat=3), "did you mean repeats?"),  # type: ignore[call-arg]
    ],
)
def test_an_unknown_option_is_told_with_the_one_that_was_meant(call: Any, words: str) -> None:
    with pytest.raises(OptionTypeError) as error:
        call()
    assert words in str(error.value)


@pytest.mark.parametrize(
    "model",
    [None, 3, NET.SerializeToString(), bytearray(9), NET.graph, ["m.onnx"], {}, "", "a\0b.onnx", "n" * 300, Rude()],
)
def test_what_is_no_model(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: onnxfold.fold(model),
        lambda: onnxfold.inspect(model),
        lambda: onnxfold.compare(model, NET),
        lambda: onnxfold.compare(NET, model),
        lambda: to_tflite(model, "out.tflite"),
        lambda: bench([model], ["host"]),
    ):
        with pytest.raises(ConfigError if not isinstance(model, str) else (ConfigError, ModelLoadError)) as error:
            call()
        assert len(str(error.value)) < 500
        assert isinstance(error.value, OptionTypeError) or isinstance(model, str)


@pytest.mark.parametrize(
    "call",
    [
        lambda: onnxfold.compare(NET, NET, seed=-1),
        lambda: onnxfold.compare(NET, NET, seed=1.5),  # type: ignore[arg-type]
        lambda: onnxfold.compare(NET, NET, [1, 2]),  # type: ignore[arg-type]
        lambda: onnxfold.compare(NET, NET, labels=INT_ARRAY),
        lambda: onnxfold.inspect(NET, input_shapes={"x": (1, 3, 8.5, 8)}),  # type: ignore[dict-item]
        lambda: onnxfold.inspect(NET, input_shapes=3),  # type: ignore[arg-type]
        lambda: to_tflite(NET, "x.tflite", seed="1"),
        lambda: to_tflite(NET, "x.tflite", verify="no"),
        lambda: to_tflite(NET, "x.tflite", keep_nchw_inputs=1),
        lambda: to_tflite(NET, "x.tflite", backend=None),
        lambda: to_tflite(NET, None),  # type: ignore[arg-type]
        lambda: to_tflite(NET, "x.tflite", input_shapes={"x": 3}),
        lambda: bench("m.onnx"),
        lambda: bench(["m.onnx"], "host"),
        lambda: bench(["m.onnx"], [3]),  # type: ignore[list-item]
        lambda: bench(["m.onnx"], repeats=0),
        lambda: bench(["m.onnx"], repeats=1.5),  # type: ignore[arg-type]
        lambda: bench(["m.onnx"], warm_up=-1),
        lambda: bench(["m.onnx"], threads="2"),  # type: ignore[arg-type]
        lambda: bench(["m.onnx"], threads=10**9),
        lambda: bench(["m.onnx"], seed=-1),
        lambda: bench(["m.onnx"], port=3),  # type: ignore[arg-type]
        lambda: bench(["m.onnx"], input_shapes=[3]),  # type: ignore[arg-type]
    ],
)
def test_other_functions_check_their_arguments(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        call()


def test_on_the_command_line(tmp_path: Path, command: Command) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(NET, str(model))
    for arguments in (
        ("compare", model, model, "--seed", -1),
        ("fold", model, tmp_path / "o.onnx", "--seed", -1),
        ("fold", model, tmp_path / "o.onnx", "--seed", 2**40),
        ("fold", model, tmp_path / "o.onnx", "--samples", 0),
        ("fold", model, tmp_path / "o.onnx", "--sparsity", "1e400"),
        ("export", model, tmp_path / "o.tflite", "--seed", -1),
        ("bench", model, "--seed", -1),
        ("bench", model, "--threads", 10**9),
        ("inspect", model, "--input-shapes", f"x:{10**30}"),
        ("inspect", model, "--input-shapes", f"x:{'9' * 5000}"),
        ("inspect", "n" * 300),
        ("fold", model, tmp_path / ("n" * 300)),
        ("fold", model, tmp_path / "o.onnx", "--report", tmp_path / f"{'n' * 300}.json"),
        ("export", model, tmp_path / ("n" * 300)),
        ("bench", model, "--json", tmp_path / ("n" * 300)),
        ("compare", model, model, "--data", "n" * 300),
    ):
        done = command(*arguments)
        assert done.code == 2, (arguments, done)
        done.line()
        assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("flags", [(), ("--save-as-external-data",)])
def test_long_names_that_are_legal_work(flags: tuple[str, ...], tmp_path: Path, command: Command) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / f"{'n' * 245}.onnx"
    onnx.save(NET, str(model))
    quick = ("--method", "prune-l1", "--allocation", "uniform", "--sparsity", "0.3", "--no-verify")
    done = command("fold", model, out, *quick, *flags, "--report", tmp_path / f"{'r' * 250}.json")
    assert done.code == 0, done.err
    onnx.checker.check_model(str(out), full_check=True)


def test_errors_are_of_the_package() -> None:
    assert issubclass(OptionTypeError, OnnxFoldError)
    assert issubclass(OptionTypeError, TypeError)
    assert issubclass(OptionTypeError, ValueError)
