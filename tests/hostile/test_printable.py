"""Names from models and files never reach a terminal, a log, a page or C code raw."""

from __future__ import annotations

import ast
import logging
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.edge_bench.result import BenchResult
from onnxfold.edge_bench.result import render_html as bench_page
from onnxfold.errors import ConfigError, ExportError
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import save
from onnxfold.graph.plain_names import use_plain_names
from onnxfold.graph.run.session import Session
from onnxfold.html_report import render_html
from onnxfold.html_report.command_line import command_line
from onnxfold.printable import printable, shortened
from onnxfold.progress import ProgressBar
from onnxfold.report.comparison import ComparisonReport
from onnxfold.terminal import PrintableFormatter, Table, say_table
from testing import models
from tests.hostile.conftest import RAW, Command
from tests.hostile.nasty import NASTY, nasty_model
from tests.html_report.reports import rich

PACKAGE = Path(onnxfold.__file__).parent
QUICK = ("--method", "prune-l1", "--allocation", "uniform", "--no-verify")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "[bold]\x1b[2J\n\u202e.onnx"
    onnx.save(nasty_model(), str(path))
    return path


@pytest.mark.parametrize(
    "text", ["\0", "\x1b[31m", "\x7f", "\x85", "\x9b", "\u200e", "\u200f", "\u061c", "\u202a", "\u202e", "\u2066",
             "\u2069", "\u2028", "\u2029", "\udcff", "\r\n", "\t", "\ufeff", "\ufffe", "\U000e0001"],
)  # fmt: skip
def test_what_has_no_form_is_escaped(text: str) -> None:
    shown = printable(f"a{text}b")
    assert shown.isprintable()
    assert shown == printable(shown)
    assert shown == f"a{''.join(c if c.isprintable() else c.encode('unicode_escape').decode() for c in text)}b"


def test_what_has_a_form_stays() -> None:
    for text in ("/layer1/conv.weight", "通道/卷积层_é\u0301_🙂", "a\u00a0b\u3000c", "C:\\new", ""):
        assert printable(text) == text


def test_long_lines_are_cut_in_the_middle() -> None:
    line = shortened("x" * 10**6)
    assert len(line) < 1100
    assert "characters left out" in line


def test_errors_are_one_printable_line() -> None:
    assert str(ConfigError(f"array '{NASTY}'")).isprintable()
    assert str(ExportError("no", node=NASTY, op_type=NASTY)).isprintable()
    assert len(str(ConfigError("x" * 10**6))) < 1100


def test_log_records_are_printable_lines() -> None:
    record = logging.LogRecord("net", logging.INFO, "", 0, "cluster %s", (NASTY,), None)
    assert PrintableFormatter("%(name)s: %(message)s").format(record).isprintable()


def test_progress_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar(clock=lambda: 0.0)
    bar(f"partition {NASTY}", 1, 3)
    assert str(bar).isprintable()
    assert "[/red][bold]x" in str(bar)
    bar._open()
    bar._show()
    bar._bar.stop()
    assert not RAW.search(capsys.readouterr().err.replace("\x1b", ""))


def test_only_one_module_prints() -> None:
    """Whoever imports rich, prints, or writes to a standard stream is this module or a progress bar."""
    allowed = {"terminal.py", "progress.py"}
    run_elsewhere = {"measure_script.py"}  # in processes of their own, whose output is read
    found = []
    words = ("rich", "print", "echo", "stdout", "stderr")
    for path in sorted({p.resolve() for root in (PACKAGE, *PACKAGE.glob("*/")) for p in root.rglob("*.py")}):
        text = path.read_text()
        if path.name in allowed | run_elsewhere or not any(word in text for word in words):
            continue
        for node in ast.walk(ast.parse(text)):
            imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if any(name.split(".")[0] == "rich" for name in imported) or called in (
                "print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write", "traceback.print_exc",
            ):  # fmt: skip
                found.append(f"{path.name}: {imported or called}")
    assert not found


@pytest.mark.parametrize("flags", [(), ("--verbose",), ("--json",)])
def test_inspect(flags: tuple[str, ...], model: Path, command: Command) -> None:
    done = command("inspect", model, *flags)
    assert done.code == 0
    assert not RAW.search(done.out + done.err)
    assert "[/red][bold]x" in done.out.replace("\n", "")


def test_fold(model: Path, tmp_path: Path, command: Command) -> None:
    out, report = tmp_path / f"out{model.name}", tmp_path / "report.html"
    done = command("fold", model, out, *QUICK, "--verbose", "--keep", f"*{NASTY[20:]}", "--report", report)
    assert "matches all" in done.err or done.code == 1, done.err  # everything is kept
    assert not RAW.search(done.out + done.err)
    done = command("fold", model, out, *QUICK, "--sparsity", "0.3", "--verbose", "--report", report)
    assert done.code == 0, done.err
    assert not RAW.search(done.out + done.err)
    assert out.is_file()
    page = report.read_text()
    assert not RAW.search(page.replace("</style>", "\n"))
    assert "[/red][bold]x" in page


def test_compare(model: Path, command: Command) -> None:
    for flags in ((), ("--json",)):
        done = command("compare", model, model, *flags)
        assert done.code == 0, done.err
        assert not RAW.search(done.out + done.err)
        assert "[link=http" in done.out


@pytest.mark.parametrize("kind", ["tflite", "c-array"])
def test_export(kind: str, model: Path, tmp_path: Path, command: Command) -> None:
    done = command("export", model, tmp_path / f"{NASTY.replace('/', '')}.x", "--format", kind)
    assert done.code == 0, done.err
    assert not RAW.search(done.out + done.err)
    assert "[link=http" in done.out


def test_comments_of_generated_code_hold_no_code(tmp_path: Path) -> None:
    """The generator copies names into comments as they are."""
    evil = "*/ int evil(void); /*\\\n"
    net = nasty_model()
    net.graph.name = net.producer_name = net.doc_string = evil
    for node in net.graph.node:
        node.name = node.doc_string = f"{node.name}{evil}"
    net.graph.node[0].output[0] = net.graph.node[1].input[0] = f"a{evil}"
    net.graph.node[1].output[0] = net.graph.node[2].input[0] = f"a{evil.replace('*', '+')}"
    view = load(net)
    use_plain_names(view)
    save(view, tmp_path / "plain.onnx")
    plain = onnx.load(str(tmp_path / "plain.onnx"))
    onnx.checker.check_model(plain, full_check=True)
    texts = str(plain).replace("raw_data", "")
    assert "evil(" not in texts
    assert "*/" not in texts
    (values,) = models.random_input(plain, 0).values()
    outputs = [Session(m).run({m.graph.input[0].name: values})[0] for m in (net, plain)]
    assert np.array_equal(*outputs)


def test_bench(tmp_path: Path, model: Path, command: Command) -> None:
    page = tmp_path / f"{NASTY.replace('/', '')}.html"
    done = command("bench", model, "--device", "jetson-nano", "--html", page)
    assert not RAW.search(done.out + done.err)
    assert not RAW.search(page.read_text())
    assert "[bold]" in done.out


def test_demo(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxfold import api
    from onnxfold.commands import run_demo as demo

    monkeypatch.setattr(demo, "SPARSITIES", (0.5,))
    folded = api.fold(nasty_model(), 0.3, method="prune-l1", allocation="uniform", verify=False)
    measured = ComparisonReport([], 1, "noise", 0.5, 0.5)
    monkeypatch.setattr(api, "fold", lambda *_, **__: folded)
    monkeypatch.setattr(api, "compare", lambda *_, **__: measured)
    monkeypatch.chdir(tmp_path)  # where a path is cut into lines must not hang on the length of the test's folder
    done = command("demo", "--model", "lenet5", "--out", NASTY.replace("/", ""))
    assert done.code == 0, done.err
    assert not RAW.search(done.out + done.err)
    assert "[red]" in done.out.replace("\n", "")


def test_pages_of_a_benchmark() -> None:
    rows = [BenchResult(model=NASTY, device=NASTY, method="measured-device", runtime=NASTY, latency_s=0.1)]
    assert not RAW.search(bench_page(rows))


def test_errors_quote_names_and_arguments_printably(model: Path, tmp_path: Path, command: Command) -> None:
    for arguments in (
        ("inspect", f"{tmp_path}/missing{NASTY}"),
        ("inspect", model, f"--{NASTY}"),
        (NASTY,),
        ("inspect", model, "--input-shapes", f"{NASTY}:1,3"),
        ("fold", model, tmp_path / "out.onnx", "--ratio", f"{NASTY}=0.5"),
        ("fold", model, tmp_path / "out.onnx", "--device", NASTY),
        ("bench", model, "--device", f"{NASTY}.toml"),
        ("compare", model, model, "--data", f"{tmp_path}/missing{NASTY}"),
    ):
        done = command(*arguments)
        assert done.code == 2, (arguments, done.err)
        done.line()


def test_help_keeps_its_lines(command: Command) -> None:
    done = command()
    assert len((done.out + done.err).splitlines()) > 10
    assert "inspect" in done.out + done.err


def test_the_command_of_a_report_can_be_pasted() -> None:
    report = rich()
    report.model = f"dir/{NASTY.replace('[/red]', '')}'\udcfe.onnx"
    line = command_line(report)
    assert not RAW.search(line)
    word = line.split(" OUT.onnx")[0][len("onnxfold fold ") :]
    environment = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    spoken = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True, env=environment)
    assert spoken.stdout == report.model.encode(errors="surrogateescape")


def test_pages_hold_no_raw_controls() -> None:
    report = rich([NASTY])
    report.model, report.notes = NASTY, [NASTY]
    assert not RAW.search(render_html(report))


def test_names_in_a_table_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of them that differ at their end alone are told apart."""
    names = [f"{'/block' * 20}/layer_{i}" for i in range(2)]
    say_table(Table("groups", ("group", "consumers"), [(name, name) for name in names], left=("group", "consumers")))
    columns = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert "".join(columns) == "".join(names)
