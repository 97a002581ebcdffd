"""The page of the paper's networks."""

from pathlib import Path

from benchmarks.paper import FIGURES, NETWORKS, OURS, RESNET, SPARSITIES, table

LOG = {
    "recipe": {"epochs": 12, "bfloat16": True, "muon": 0.05, "progressive": False, "device": "cuda", "seed": 3},
    "parameters": 11_173_962,
    "seconds": 4800,
    "test_accuracy_bn": 0.94,
}


def test_points_are_lost_from_the_whole_network_and_rows_that_wait_do_not_stand() -> None:
    last, *_, first = OURS
    rows = {f"{last}:{s:g}": {"top1": 93.5, "machine": "2 cores", "seconds": 100 + i} for i, s in enumerate(SPARSITIES)}
    lines = table(RESNET, {"training": LOG, "rows": rows}).splitlines()
    assert "`--epochs 12 --bfloat16 --muon 0.05 --device cuda` and seed 3 in 4800 s: 94.00 %" in " ".join(lines)
    (line,) = (line for line in lines if line.startswith(f"| {last} |"))
    assert [cell.strip() for cell in line.split("|")[2:-2]] == [f"93.50 (-0.50), {100 + i} s" for i in range(4)]
    assert not any(line.startswith(f"| {first} |") for line in lines)
    assert any("SpaceshipNet" in line and "91.53 (-3.19)" in line for line in lines)


def test_published_rows_stand_beside_the_network_that_they_are_of() -> None:
    for network in NETWORKS:
        text = table(network, {"training": LOG, "rows": {}})
        assert ("published" in text) == (network == RESNET)


def test_figures_of_the_paper_have_a_place() -> None:
    pages = Path(__file__).resolve().parents[2] / "benchmarks"
    for _, page, heading in FIGURES:
        assert not heading or f"## {heading}" in (pages / page).read_text("utf-8").splitlines()
