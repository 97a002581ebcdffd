"""Fold or quantise: accuracy against bytes and against milliseconds, of networks that are folded, quantised, and both.

Usage: python -m benchmarks.equal_bytes --data DIR --models DIR [--work DIR] [--images N] [--times-only] [--out PAGE]

DIR holds the CIFAR-10 test images, and trained networks (ResNet18 and MobileNetV2). Files and results are kept in the
folder of --work, in a folder of the code that made them: a second run makes no file and measures no accuracy again, but
all times. --times-only takes the files that are there whatever the code, for a last run on a quiet machine.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.accuracy.networks import Network, find_networks, test_images
from benchmarks.accuracy.store import environment, fingerprint
from benchmarks.equal_bytes import figure, measure, page
from benchmarks.equal_bytes.variants import make_variants
from onnxfold.progress import ProgressBar

FAMILIES = ("resnet18", "mobilenet_v2")
_PAGE = Path(__file__).parents[1] / "equal_bytes.md"


def main() -> None:
    """Make the files, measure them, and write the page."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.equal_bytes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10_test.npz")
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="folders with trained networks")
    parser.add_argument("--form", default="bn", help="bn or fused: which files of the networks")
    parser.add_argument(
        "--work", type=Path, default=Path("build/equal_bytes"), help="folder to keep files and results in"
    )
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--times-only", action="store_true")
    parser.add_argument("--out", type=Path, default=_PAGE)
    args = parser.parse_args()
    networks = [n for n in find_networks(args.models) if _is_meant(n, args.form)]
    if not networks:
        parser.error(f"no {' or '.join(FAMILIES)} on CIFAR-10 in {', '.join(map(str, args.models))}")
    folder = _latest(args.work) if args.times_only else args.work / fingerprint()
    file = folder / "results.json"
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": {}}
    results["environment"] = _said(environment())
    with ProgressBar() as tell:
        for network in networks:
            _measure(network, args.data, folder, args.images, results["rows"], tell)
            file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    args.out.write_text(page.render(results), encoding="utf-8")
    figures = args.out.parent / "figures"
    figures.mkdir(exist_ok=True)
    for network in networks:
        own = [row for row in results["rows"].values() if row["network"] == network.name]
        figure.draw(network.name, own, figures / f"equal_bytes_{network.name}.png")
    print(f"wrote {args.out}")


def _is_meant(network: Network, form: str) -> bool:
    return network.dataset == "cifar10" and network.family in FAMILIES and network.form == form and not network.penalty


def _latest(work: Path) -> Path:
    """Return the folder of files that was written last."""
    return max((p.parent for p in work.glob("*/results.json")), key=lambda p: p.stat().st_mtime)


def _measure(network: Network, data: Path, folder: Path, count: int, rows: dict[str, Any], tell: ProgressBar) -> None:
    """Measure all files of a network; accuracies of files that have not changed are taken over."""
    images, labels = (values[:count] for values in test_images(data, network))
    variants = list(make_variants(network, folder, tell))
    for i, variant in enumerate(variants):
        tell(f"accuracy of {network.name}", i, len(variants))
        known = rows.get(variant.key, {})
        if known.get("of") != measure.fingerprint(variant, images):
            known = measure.size_and_accuracy(variant, images, labels)
        said = {"network": variant.network, "runtime": variant.runtime, "sparsity": variant.sparsity}
        rows[variant.key] = {**known, **said, "dtype": variant.dtype}
    tell(f"time of {network.name}")
    for key, row in measure.times(variants, images[:1]).items():
        rows[key] |= row


def _said(found: dict[str, Any]) -> str:
    """Return machine and versions in words."""
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)
    return f"{found['cpu']}, {found['cores']} cores, {found['platform']}; Python {found['python']}, {packages}"


if __name__ == "__main__":
    main()
