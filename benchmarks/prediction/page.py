"""The page."""

from collections.abc import Iterable, Sequence

from benchmarks.accuracy.store import environment
from benchmarks.coverage.text import table_row
from benchmarks.prediction.cells import Row
from benchmarks.prediction.regression import Judged, fit, is_on_samples, judged
from onnxfold.fidelity.estimate import REGRESSION

_USAGE = "python -m benchmarks.prediction --data DATA --models MODELS --out OUT --page benchmarks/prediction.md"
_HOW = {"auto": "default", "dead-leaves": "dead leaves", "data": "250 images", "crops": "250 crops of photographs"}
#: Estimates of a network that say how often its intervals hold, and how often they should at least.
_ENOUGH, _LEAST = 5, 0.75
#: Images that are held out of 250.
_HELD_OUT = 50
_COLUMNS = ("network", "fitted on", "sparsity", "held out", "variety", "estimate", "interval", "agreement", "")
_QUALITY = ("cells", "estimated", "in the interval", "over by more than 10 points", "mean absolute error, points")


def render(rows: Sequence[Row]) -> str:
    """Return the page of rows."""
    machine, versions = environment(), sorted({row["code"] for row in rows})
    estimates = {id(row): (row, estimate, interval) for row, estimate, interval in judged(rows)}
    kinds = [kind for kind in _HOW if any(row["asked"] == kind for row in rows)]
    networks = dict.fromkeys(row["network"] for row in rows)
    fitted = fit([row for row in rows if not is_on_samples(row)])
    lines = [
        "# Estimated agreement",
        "",
        f"Reproduce with `{_USAGE}`.",
        "",
        "A fold estimates its top-1 agreement with the original on data that it has not seen, with an 80 % interval,",
        "or says that it is not known. Every row is one fold. *Agreement* is measured on real test images: 1,000 of",
        "Fashion-MNIST or CIFAR-10, or 250 of imagenet_even_500.zip. Of samples (250 images of the data set, or 250",
        "crops of two photographs, which are images of another kind), 50 are held out of the fit: the estimate is the",
        "agreement on these, as it would be if their answers were as sure as those of all samples. On generated inputs",
        "it comes from a regression in which no file of the same training took part; the interval is of the tenth and",
        "ninetieth percentile of residuals, every training weighing the same, in units of a deviation among networks,",
        "of the share that the held-out inputs show, and of a point.",
        "*Variety* says how many classes the original names on the inputs that are held out. Images of small networks",
        "are of their training sets, which a ResNet32 and a ResNet44 know well: at 20 % their estimates on 250 images",
        "are 4 points too high.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}; commit {machine['commit']}; "
        f"{len(networks)} networks; {len(versions)} version{'s' if len(versions) > 1 else ''} of the code "
        f"({', '.join(versions)}).",
        "",
        "## How well it holds",
        "",
        table_row(["folds", *_QUALITY]),
        table_row(["---"] * (1 + len(_QUALITY))),
        *(_summary(_HOW[kind], [r for r in rows if r["asked"] == kind], estimates) for kind in kinds),
        _summary("all", rows, estimates),
        "",
        table_row(["network", *_QUALITY]),
        table_row(["---"] * (1 + len(_QUALITY))),
        *(_summary(name, [r for r in rows if r["network"] == name], estimates) for name in networks),
        "",
        *_below(rows, estimates, networks),
        "",
        "## The regression",
        "",
        f"Of all rows on generated inputs: logit of the agreement = {fitted.coefficients[0]:.2f} + "
        f"{fitted.coefficients[1]:.2f} x logit of the agreement on held-out inputs; interval "
        f"{fitted.spread[0]:+.2f} to {fitted.spread[1]:+.2f} deviations. The package has {REGRESSION.coefficients} and "
        f"{REGRESSION.spread}.",
        "",
        "## Cells",
        "",
        table_row(list(_COLUMNS)),
        table_row(["---"] * len(_COLUMNS)),
        *(_cell(row, estimates.get(id(row))) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _summary(name: str, rows: Sequence[Row], estimates: dict[int, Judged]) -> str:
    known = [estimates[id(row)] for row in rows if id(row) in estimates]
    cells = [name, str(len(rows)), str(len(known))]
    if not known:
        return table_row([*cells, "", "", ""])
    inside = sum(low <= row["agreement"] <= high for row, _, (low, high) in known) / len(known)
    missed = [estimate - row["agreement"] for row, estimate, _ in known]
    over = sum(miss > 0.1 for miss in missed) / len(rows)
    error = 100 * sum(map(abs, missed)) / len(missed)
    return table_row([*cells, f"{inside:.0%}", f"{over:.1%} of all", f"{error:.1f}"])


def _below(rows: Sequence[Row], estimates: dict[int, Judged], networks: Iterable[str]) -> list[str]:
    """Return what the table of networks shows, in words."""
    shares = {}
    for name in networks:
        known = [estimates[id(row)] for row in rows if row["network"] == name and id(row) in estimates]
        if len(known) >= _ENOUGH:
            shares[name] = sum(low <= row["agreement"] <= high for row, _, (low, high) in known) / len(known)
    low = [f"{name} ({share:.0%})" for name, share in shares.items() if share < _LEAST]
    said = f"; below it: {', '.join(low)}" if low else ""
    return [
        f"Of {len(shares)} networks with {_ENOUGH} estimates or more, {len(shares) - len(low)} have {_LEAST:.0%} of "
        f"them inside{said}. Estimates on images are shares of the same {_HELD_OUT} held-out images, so cells of one",
        "network miss together.",
    ]


def _cell(row: Row, known: Judged | None) -> str:
    signs = row["signs"]
    cells = [row["network"], _HOW[row["asked"]], f"{row['sparsity']:.0%}", f"{signs['held_out_agreement']:.1%}"]
    cells.append(f"{signs['variety']:.2f}")
    if known is None:
        return table_row([*cells, "not known", "", f"{row['agreement']:.1%}", ""])
    _, estimate, (low, high) = known
    outside = "" if low <= row["agreement"] <= high else "outside"
    return table_row([*cells, f"{estimate:.1%}", f"{low:.0%} to {high:.0%}", f"{row['agreement']:.1%}", outside])
