"""Pages opened in headless Chromium, at several widths at once."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

# A window is never narrower than 500 pixels, a frame is; what is in it sees the frame's width. The page forbids
# scripts, or all but its own, so the one that measures stands outside.
_MEASURE = """
addEventListener('load', () => {
  const measured = {}, acts = {ACTS};
  for (const frame of document.querySelectorAll('iframe')) {
    const page = frame.contentDocument, width = frame.contentWindow.innerWidth;
    const boxes = [...page.body.querySelectorAll('*')].map(e => [e, e.getBoundingClientRect()]);
    const shown = boxes.filter(([e, box]) => box.width > 0 && box.height > 0);
    measured[frame.id] = {
      width,
      scroll_width: page.documentElement.scrollWidth,
      outside: shown.filter(([e, box]) => box.right > width + 0.5 || box.left < -0.5)
        .filter(([e, box]) => !e.parentElement.closest('.scroll'))
        .map(([e]) => e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.slice(0, 40)),
      sections: Object.fromEntries([...page.querySelectorAll('section')].map(s => {
        const box = s.getBoundingClientRect();
        return [s.id, [box.width, box.height]];
      })),
      beside_charts: shown.filter(([e, box]) => {
        const svg = e.tagName == 'text' && e.closest('svg').getBoundingClientRect();
        return svg && (box.left < svg.left - 1 || box.right > svg.right + 1 || box.bottom > svg.bottom + 1);
      }).map(([e]) => e.textContent),
      smallest_text: Math.min(...shown.filter(([e]) => e.tagName == 'text').map(([e, box]) => box.height), 99),
      scrollers: [...page.querySelectorAll('.scroll')].map(e => ({
        inside: e.scrollWidth, shown: e.clientWidth, bar: e.offsetHeight - e.clientHeight,
        thumb: frame.contentWindow.getComputedStyle(e, '::-webkit-scrollbar-thumb').backgroundColor,
      })),
      bars: [...page.querySelectorAll('rect')].map(e => {
        const box = e.getBoundingClientRect();
        return [e.getAttribute('class'), frame.contentWindow.getComputedStyle(e).fill, box.width, box.height];
      }),
      overlaps: [...page.querySelectorAll('svg.chart')].flatMap(svg => {
        const texts = [...svg.querySelectorAll('text')].filter(e => e.textContent)
          .map(e => [e.textContent, e.getBoundingClientRect()]);
        return texts.flatMap(([a, one], i) => texts.slice(i + 1).filter(([b, other]) =>
          one.left < other.right - 1 && other.left < one.right - 1 &&
          one.top < other.bottom - 4 && other.top < one.bottom - 4).map(([b]) => a + ' on ' + b));
      }),
      images: [...page.images].map(e => [e.complete && e.naturalWidth, e.getBoundingClientRect().width]),
      background: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
      acted: acts[frame.id] ? acts[frame.id](page) : null,
    };
  }
  const result = document.createElement('pre');
  result.id = 'measured';
  result.textContent = JSON.stringify(measured);
  document.body.append(result);
});
"""


@dataclass(frozen=True)
class Opened:
    """What Chromium showed.

    Parameters
    ----------
    measured : dict
        By frame: width, scroll width, elements outside, sizes of sections, bars, colours.
    console : list of str
        What appeared on the console.
    """

    measured: dict[str, Any]
    console: list[str]


def chromium() -> str:
    """Return the browser, or skip the test."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on this machine: apt-get install -y chromium")
    return found


def open_pages(
    pages: Mapping[str, tuple[str, int]], folder: Path, *, dark: bool = False, acts: Mapping[str, str] | None = None
) -> Opened:
    """Open pages, each in a frame of its own width.

    Parameters
    ----------
    pages : mapping of str to (str, int)
        The page's text and the width in pixels, by the frame's name.
    folder : Path
        For the browser's files.
    dark : bool
        Prefer dark colours.
    acts : mapping of str to str, optional
        By frame, a function in JavaScript that takes the page's document, does what a user would do, and returns what
        it saw; `measured` holds that as `acted`.
    """
    browser = chromium()
    frames = [
        f'<iframe id="{name}" width="{width}" height="800" style="border:0" srcdoc="{html.escape(text)}"></iframe>'
        for name, (text, width) in pages.items()
    ]
    outer = folder / "frames.html"
    measure = _MEASURE.replace(
        "{ACTS}", "{" + ", ".join(f"'{name}': {act}" for name, act in (acts or {}).items()) + "}"
    )
    outer.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><body>{''.join(frames)}<script>{measure}</script>", encoding="utf-8"
    )
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
    command += ["--force-dark-mode"] if dark else []
    done = subprocess.run(
        [*command, "--dump-dom", outer.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"Chromium ended with {done.returncode}: {done.stderr[-2000:]}"
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Opened(json.loads(html.unescape(found[1])), console)
