"""Cases of the comparison: every row of every table, and the options that change results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.folding.methods import METHODS, REPAIRS

#: Few inputs, so that a fold takes a fraction of a second.
_QUICK = {"inputs": "dead-leaves", "samples": 16}
_CHANNELS = ("residual", "depthwise_separable", "autoencoder", "concat_net", "mlp_bn", "attention", "bodies")


@dataclass(frozen=True)
class Case:
    """One call.

    Parameters
    ----------
    name : str
        Unique; a file name.
    kind : {'fold', 'inspect', 'compare', 'export', 'command'}
        What is called.
    model : str
        Name of the model that it is called with.
    options : dict
        Keywords of the call, plain values; of a command, its arguments. ``{models}`` and ``{out}`` stand for folders.
    """

    name: str
    kind: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)


def all_cases(models: Sequence[str]) -> list[Case]:
    """Return the cases for a set of models, each with a name of its own."""
    cases = [*_tables(), *_options(), *_errors(), *_commands()]
    for index, model in enumerate(models):
        # The least that most random graphs allow.
        goal = {"sparsity": 0.1} if model.startswith("random_") else {}
        cases += [Case(f"inspect-{model}", "inspect", model), _fold("default", model, **goal)]
        cases.append(_fold("uniform", model, channel_ratio=0.3, method=("fold-ar", "fold-naive", "ifm")[index % 3]))
    for model in ("residual", "nhwc_tail", "autoencoder", "lenet5_2x"):
        cases.append(Case(f"export-{model}", "export", model))
    cases.append(Case("compare", "compare", "residual", {"b": "{models}/external.onnx"}))
    return cases


def _fold(label: str, model: str, **options: Any) -> Case:
    return Case(f"{model}-{label}", "fold", model, {**_QUICK, **options})


def _tables() -> Iterator[Case]:
    for method in METHODS.values():
        for model in _CHANNELS:
            options: dict[str, Any] = {"method": method.name, "sparsity": 0.4}
            if method.inputs == "data":
                options["calibration"] = f"{{models}}/{model}.npz"
            if method.inputs == "deep-inversion":
                options |= {"inputs": "deep-inversion", "input_steps": [3]}
            yield _fold(method.name, model, **options)
    for cluster in PARTITIONERS:
        yield _fold(f"cluster-{cluster}", "preact_residual", cluster=cluster)
        yield _fold(f"cluster-{cluster}", "grouped_conv", cluster=cluster, repair="none", channel_ratio=0.4)
    for repair in REPAIRS:
        yield _fold(f"repair-{repair}", "chain_conv", method="fold-naive", repair=repair)
        yield _fold(f"repair-{repair}", "squeeze_excite", method="prune-l2", repair=repair, channel_ratio=0.4)


def _options() -> Iterator[Case]:
    yield _fold("global", "residual", sparsity=0.6, allocation="global", method="fold-ar")
    yield _fold("uniform-allocation", "residual", sparsity=0.6, allocation="uniform")
    yield _fold("macs", "residual", max_macs=100_000)
    yield _fold("params-ram", "residual", max_params=4_000, max_ram="64K", method="fold-ar")
    yield _fold("flash", "lenet5_2x", max_flash="400K", method="fold-naive", allocation="uniform")
    yield _fold("device", "lenet5_2x", device="esp-eye", method="prune-l1")
    yield _fold("round-to", "residual", round_to=4)
    for objective in ("balanced", "weights", "macs"):
        for step in ("auto", 1):
            yield _fold(f"{objective}-{step}", "wide_residual", objective=objective, round_to=step)
    yield _fold("drop-blocks", "residual", drop_blocks=1)
    yield _fold("drop-and-fold", "residual", drop_blocks="auto", sparsity=0.5)
    yield _fold("ratios", "residual", ratios={"conv_0": 0.5, "conv_3": 0.0}, sparsity=0.3)
    yield _fold("keep", "concat_net", keep=["conv_1"], sparsity=0.3)
    yield _fold("calibration", "residual", calibration="{models}/residual.npz", inputs="auto")
    yield _fold("noise", "mlp", inputs="noise", samples=32)
    yield _fold("inversion", "residual", inputs="deep-inversion", input_steps=[4])
    yield _fold("inversion-classes", "residual_plain", inputs="deep-inversion", input_steps=[4])
    yield _fold("fidelity", "chain_conv", min_fidelity=0.6, samples=32)
    yield _fold("seed", "residual", seed=5, method="fold-ar")
    yield _fold("shapes", "residual", input_shapes={"x": [4, 3, 8, 8]}, max_macs=100_000)
    yield _fold("no-verify", "residual", verify=False)
    yield _fold("external-out", "external", save_as_external_data=True)


def _errors() -> Iterator[Case]:
    yield _fold("error-method", "mlp", method="fold")
    yield _fold("error-cluster", "mlp", cluster="median")
    yield _fold("error-pair", "mlp", cluster="top-l1", repair="approximate")
    yield _fold("error-goals", "mlp", sparsity=0.5, channel_ratio=0.5)
    yield _fold("error-data", "mlp", method="fold-r")
    yield _fold("error-limit", "residual", max_params=10)
    yield _fold("error-nothing", "residual", keep=["*"])
    yield _fold("error-missing", "no_such_model")


def _commands() -> Iterator[Case]:
    fold = ["fold", "{models}/residual.onnx", "{out}/command-fold.onnx", "--inputs", "dead-leaves", "--samples", "16"]
    yield Case("command-fold", "command", "residual", {"arguments": [*fold, "--report", "{out}/command-fold.json"]})
    yield Case("command-inspect", "command", "bodies", {"arguments": ["inspect", "{models}/bodies.onnx", "--json"]})
