"""Write the reference pages from the code: ``python -m docs.generate``.

``docs/operators.md`` comes from the registry of channel rules, ``docs/cli.md`` from the command line,
``docs/tflite_ops.md`` from ONNX's node tests run through the TFLite writer (some ten seconds; needs the extra
``tflite``).
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from benchmarks.export.conformance import render as render_tflite_ops
from onnxfold.channels.context import ChannelRule, all_rules, channel_rule
from onnxfold.cli import cli
from onnxfold.config import OPTIONS, FoldConfig
from onnxfold.config.option import GROUPS
from onnxfold.graph.files.load import MIN_OPSET

FOLDER = Path(__file__).resolve().parent

_HEADER = "<!-- Written by `python -m docs.generate`; do not edit. -->\n\n"
_COMMANDS = ("fold", "merge", "inspect", "compare", "export", "bench", "sweep", "demo")

OPTIONS_BY_NAME = Path(inspect.getfile(FoldConfig)).with_name("fold_options.py")
_OPTIONS_HEADER = '''"""Options by name, for checkers of types: written by ``python -m docs.generate``, do not edit."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from numpy.typing import NDArray
'''

Rows = dict[tuple[str, int, Callable[..., object]], list[ChannelRule]]


def main() -> None:
    """Rewrite the generated pages."""
    pages = {
        "operators.md": render_operators,
        "cli.md": render_cli,
        "tflite_ops.md": render_tflite_ops,
        "options.md": render_options,
    }
    for name, render in pages.items():
        (FOLDER / name).write_text(render(), encoding="utf-8")
    OPTIONS_BY_NAME.write_text(render_options_by_name(), encoding="utf-8")


def render_operators() -> str:
    """Return ``docs/operators.md``: one row per channel rule, operators that share a rule in one row."""
    rows: Rows = {}
    for domain, rule in all_rules():
        rows.setdefault((domain, rule.since, rule.declare), []).append(rule)
    operators = {(domain, rule.op_type) for domain, rule in all_rules()}
    table = "".join(_row(domain, since, rules) for (domain, since, _), rules in rows.items())
    return (
        f"{_HEADER}# Supported operators\n\n"
        f"Channel rules exist for {len(operators)} operators; an operator without a rule blocks the axes it touches. "
        f"Models of opset {MIN_OPSET} or newer are read.\n\n"
        "- **since**: operator set from which the rule holds, until a newer row of the same operator takes over.\n"
        "- **channels**: what the rule says about the node; the rule's own docstring.\n"
        "- **other axes stay because**: the reason reported for axes that the rule leaves out; empty where it leaves "
        "out none that could be folded.\n"
        "- **an axis or the node stays if**: further reasons that the rule may give. Any node also stays whole if the "
        "rank of a tensor it needs is unknown, and an axis stays if it is linked to one of unknown width.\n\n"
        "| operator | since | channels | other axes stay because | an axis or the node stays if |\n"
        f"|---|---|---|---|---|\n{table}"
    )


def render_cli() -> str:
    """Return ``docs/cli.md``: the help text of every command."""
    parts = [_HEADER, "# Command line\n", _help(cli, "onnxfold")]
    for name in _COMMANDS:
        parts += [f"\n## onnxfold {name}\n", _help(cli.commands[name], f"onnxfold {name}")]
    return "".join(parts)


def render_options() -> str:
    """Return ``docs/options.md``: every option of a fold, in its group."""
    parts = [
        _HEADER,
        "# Options of a fold\n\nIn Python by these names; on the command line as `onnxfold fold --help` shows.\n",
    ]
    types = _types_as_written()
    for group in GROUPS:
        entries = {name: option for name, option in OPTIONS.items() if option.group == group}
        lines = [
            _entry(f"`{name}`, `{types[name]}`", option.reference_help.replace("`", "")) + "\n"
            for name, option in entries.items()
        ]
        parts += [f"\n## {group}\n\n", *lines]
    return "".join(parts)


def render_options_by_name() -> str:
    """Return ``onnxfold/config/fold_options.py``: the options of a fold and of a merge for checkers of types."""
    types = _types_as_written()
    shared = [name for name in types if OPTIONS[name].in_merge and name != "sparsity"]
    own = [name for name in types if not OPTIONS[name].in_merge]
    listed = {
        "SharedOptions(TypedDict, total=False)": ("Options that a fold and a merge have by name.", shared),
        "FoldOptions(SharedOptions, total=False)": ("Options of a fold by name, but the sparsity.", own),
        "MergeOptions(SharedOptions, total=False)": ("Options of a merge by name.", ["sparsity"]),
    }
    classes = [
        f'class {title}:\n    """{text}"""\n\n' + "".join(f"    {n}: {types[n]}\n" for n in names)
        for title, (text, names) in listed.items()
    ]
    return _OPTIONS_HEADER + "\n\n" + "\n\n".join(classes)


def _types_as_written() -> dict[str, str]:
    """Return the types of the options, as the source of FoldConfig has them."""
    tree = ast.parse(Path(inspect.getfile(FoldConfig)).read_text(encoding="utf-8"))
    config = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "FoldConfig")
    annotations = {e.target.id: e.annotation for e in config.body
                   if isinstance(e, ast.AnnAssign) and isinstance(e.target, ast.Name)}  # fmt: skip
    return {n: ast.unparse(a.slice.elts[0]) for n, a in annotations.items()
            if isinstance(a, ast.Subscript) and isinstance(a.slice, ast.Tuple)}  # fmt: skip


def stated_reasons(function: Callable[..., object]) -> list[str]:
    """Return the reasons for leaving an axis or a node alone that a rule, or a function that it calls, states.

    Parameters
    ----------
    function : callable
        The function that a rule declares with.

    Returns
    -------
    list of str
        In the order of the source, each once; values that are only known at run time are written as an ellipsis.
    """
    found: dict[str, None] = {}
    functions = [function]
    for current in functions:  # grows while it is read
        for call in _calls(current):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name == "CannotDeclareError":
                found[_text(call.args[0], current)] = None
            elif name == "block":
                found[_text(call.args[1], current)] = None
            elif name == "constant_ints":
                found[f"{_text(call.args[1], current)} computed at run time cannot follow a new channel count"] = None
            elif name == "weight":
                found[f"{_text(call.args[1], current)} is computed at run time"] = None
            elif isinstance(call.func, ast.Name):
                called = inspect.unwrap(current).__globals__.get(name)
                if inspect.isfunction(called) and ".rules." in called.__module__ and called not in functions:
                    functions.append(called)
    return list(found)


def _calls(function: Callable[..., object]) -> Iterator[ast.Call]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    yield from sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _text(node: ast.expr, function: Callable[..., object]) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, function) for part in node.values)
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return str(inspect.unwrap(function).__globals__.get(node.id, "…"))
    return "…"


def _row(domain: str, since: int, rules: list[ChannelRule]) -> str:
    prefix = f"{domain}." if domain else ""
    first = rules[0]
    mixes = "" if first.mixes == inspect.signature(channel_rule).parameters["mixes"].default else first.mixes
    cells = (
        ", ".join(f"`{prefix}{rule.op_type}`" for rule in rules),
        str(since),
        " ".join((inspect.getdoc(first.declare) or "").split()),
        mixes,
        "<br>".join(stated_reasons(first.declare)),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _help(command: click.Command, name: str) -> str:
    """Return usage, description and options of a command as paragraphs and a list: lines wrap on any screen."""
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"], show_default=True)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    paragraphs = [_escaped(" ".join(part.split())) for part in inspect.cleandoc(command.help or "").split("\n\n")]
    sections = getattr(command, "option_groups", [])
    grouped = [option for section in sections for option in section.options]
    lines = _entries([p for p in command.get_params(context) if p not in grouped], context)
    for section in sections:
        lines += [f"\n**{section.title}**\n", *_entries(section.options, context)]
    if isinstance(command, click.Group):
        for called, inner in command.commands.items():
            lines.append(_entry(f"[`{called}`](#{name}-{called})", inner.get_short_help_str(1000)))
    return "\n" + "\n\n".join([f"```text\n{usage}\n```", *paragraphs, "\n".join(lines)]) + "\n"


def _entries(parameters: Iterable[click.Parameter], context: click.Context) -> list[str]:
    records = [record for p in parameters if (record := p.get_help_record(context)) is not None]
    return [_entry(f"`{option}`", text) for option, text in records]


def _entry(title: str, text: str) -> str:
    return f"- {title}" + (f"<br>{_escaped(text)}" if text else "")


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>|])", r"\\\1", text)


if __name__ == "__main__":
    main()
