"""The page of a sweep as a browser shows it, on a phone and on a desk, and what it does when it is used."""

from __future__ import annotations

import pytest

from onnxfold.sweeps.answers.pick import front
from onnxfold.sweeps.page import render_page
from tests.html_report.chromium import Opened, open_pages
from tests.sweeps.rows import row, sweep_rows

LONG_NAME = f"a_rather_long_folder/of_models/with_{'very_' * 8}long_name.onnx"
LONG = [
    row(n, model=LONG_NAME, command="x" * 400, agreement=1 - 0.01 * n, latency_ms=1e-3 * n, weights=10**9 * (8 - n))
    for n in range(1, 8)
]
ROWS = {"sweep": sweep_rows(), "long": LONG, "one": [row(1)]}
PAGES = {f"{name}-{width}": (name, width) for name in ROWS for width in (375, 1200)}
every_page = pytest.mark.parametrize("name", PAGES)

#: Look at the chart; choose other axes and one model; point at a fold, then at another one after choosing the first.
_USE = """page => {
  const all = what => [...page.querySelectorAll(what)];
  const chosen = () => page.getElementById('chosen').textContent;
  const titles = () => all('#chart svg > text').map(e => e.textContent);
  const choose = (name, value) => {
    const control = page.getElementById(name);
    control.value = value;
    control.dispatchEvent(new Event('change'));
  };
  const seen = { marks: all('#chart [data-row]').length, titles: titles(),
    legend: page.getElementById('legend').textContent,
    fronts: all('#chart path.front').map(e => e.dataset.model), hint: chosen() };
  choose('x', 'weights'); choose('y', 'relative_error'); choose('model', '0');
  seen.chosen_titles = titles();
  seen.chosen_marks = all('#chart [data-row]').length;
  const best = all('#chart [data-front]');
  seen.front = best.map(e => +e.dataset.row);
  best[0].dispatchEvent(new Event('pointerenter'));
  seen.pointed = chosen();
  seen.marked = all('#chart .chosen-mark').map(e => e.dataset.row);
  best[0].dispatchEvent(new Event('click'));
  best[1].dispatchEvent(new Event('pointerenter'));
  seen.pinned = chosen() === seen.pointed;
  best[0].dispatchEvent(new Event('click'));
  best[1].dispatchEvent(new Event('pointerenter'));
  seen.unpinned = chosen() !== seen.pointed;
  best[0].focus();
  seen.focused = chosen() === seen.pointed;
  const names = () => all('#all-folds tbody tr').map(e => e.cells[0].textContent);
  const latency = all('#all-folds thead button')[1];
  latency.click();
  seen.fastest = names()[0];
  latency.click();
  seen.slowest = [names()[0], all('#all-folds [aria-sort]').map(e => e.textContent + e.ariaSort)].flat();
  seen.originals = all('#chart svg > .original').length;
  return seen;
}"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    pages = {name: (render_page(ROWS[rows]), width) for name, (rows, width) in PAGES.items()}
    pages["used"] = (render_page(sweep_rows()), 700)
    return open_pages(pages, tmp_path_factory.mktemp("chromium"), acts={"used": _USE})


@every_page
def test_nothing_overflows_and_labels_can_be_read(opened: Opened, name: str) -> None:
    measured = opened.measured[name]
    assert measured["outside"] == []
    assert measured["scroll_width"] <= measured["width"] == PAGES[name][1]
    assert measured["smallest_text"] >= 10
    assert measured["beside_charts"] == []
    assert measured["sections"]["errors"][1] > 400


def test_the_console_is_silent(opened: Opened) -> None:
    assert opened.console == []


def test_axes_models_and_folds_can_be_chosen(opened: Opened) -> None:
    used, rows = opened.measured["used"]["acted"], sweep_rows()
    assert used["marks"] == 24
    assert used["legend"] == "fold-lsprune-l1fold-arbefore the foldfront of net.onnxfront of other/wide_net.onnx"
    assert used["fronts"] == ["net.onnx", "other/wide_net.onnx"]
    assert {"latency (ms)", "1 \u2212 agreement", "0 %", "2.5"} <= set(used["titles"])
    assert "see its command" in used["hint"]
    assert {"weights", "relative error", "800"} <= set(used["chosen_titles"])
    assert used["chosen_marks"] == 12
    best = front([r for r in rows if r.model == "net.onnx"], "weights", "relative_error")
    assert [rows[i].key for i in used["front"]] == [r.key for r in best]  # the script's front is the package's
    first = rows[used["front"][0]]
    assert first.command is not None
    assert first.command in used["pointed"]
    assert f"{first.model}, {first.goal}, {first.method}, seed 0" in used["pointed"]
    assert used["marked"] == [str(used["front"][0])]
    assert used["fastest"] == "net.onnx, sparsity 0.8, fold-ls, seed 0"
    assert used["slowest"] == ["net.onnx, before", "latency (ms)descending"]
    assert used["originals"] == 1
    assert (used["pinned"], used["unpinned"], used["focused"]) == (True, True, True)


def test_dark_colours_are_used_where_they_are_preferred(
    opened: Opened, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pages = {"dark": (render_page(sweep_rows()), 375)}
    dark = open_pages(pages, tmp_path_factory.mktemp("dark"), dark=True).measured["dark"]
    assert dark["background"] == "rgb(18, 22, 29)"
    assert dark["outside"] == []
    assert opened.measured["sweep-375"]["background"] == "rgb(255, 255, 255)"
