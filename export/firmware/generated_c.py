"""C code of a model, written by emx-onnx-cgen, with its activations in one static block.

emx-onnx-cgen writes a function per node and an entry that allocates every activation with malloc, all of them at once.
The entry is rewritten: every activation gets its place in a block whose size is known when the firmware is linked
(:mod:`onnxfold.export.firmware.interface`), elementwise operators write over an input that nobody reads later,
and every call is wrapped in a macro that can count its time.
"""

import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path

from onnxfold.channels.rules.elementwise import UNARY
from onnxfold.errors import ExportError
from onnxfold.export.firmware.interface import Buffer, Interface, offsets, plan
from onnxfold.export.fusion import PREPARE_C
from onnxfold.graph.files.save import save
from onnxfold.graph.plain_names import use_plain_names
from onnxfold.graph.view import GraphView
from onnxfold.machine.python import python

PACKAGE = "emx-onnx-cgen"
INSTALL = "pip install 'emx-onnx-cgen>=1.4,<1.5' ai-edge-litert flatbuffers"

#: Operators that read element i of an input of the output's size before they write element i of the output, and no
#: other: they may write over it.
_IN_PLACE = frozenset(
    {*UNARY, "Add", "Sub", "Mul", "Div", "PRelu", "BatchNormalization"}
    | {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"}
)
_TYPE_BYTES = {"float": 4, "double": 8, "_Bool": 1, "bool": 1, "_Float16": 2} | {
    f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_SECONDS = 600

_NODE = re.compile(r"^ \* Node (\d+):\n \* OpType: (\S+)$", re.MULTILINE)
_ENTRY = re.compile(r"^void model\((?P<parameters>[^)]*)\) \{\n(?P<body>.*?)^\}$", re.MULTILINE | re.DOTALL)
_ALLOCATION = re.compile(
    r"^    (?P<type>\w+) \(?\*(?P<name>\w+)\)?(?P<dims>(?:\[\d+\])*) = malloc\(sizeof\(\*\w+\) \* (?P<count>\d+)\);\n"
    r"    if \((?P=name) == NULL\) \{\n(?:\s*free\(\w+\);\n)*\s*return;\n\s*\}\n",
    re.MULTILINE,
)
_CALL = re.compile(r"^    node(?P<node>\d+)_\w*\((?P<arguments>[^;]*)\);$", re.MULTILINE)
_FREE = re.compile(r"^    free\(\w+\);\n", re.MULTILINE)

_HEAD = """\
#include "model_run.h"

/* Every node stays a function of its own, and the compiler does not look through it: activations of different types
 * share memory. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 8
#define EMX_NODE_FN static __attribute__((noipa, unused))
#else
#define EMX_NODE_FN static __attribute__((noinline, unused))
#endif

unsigned char model_input[MODEL_INPUT_BYTES] __attribute__((aligned(16)));
unsigned char model_output[MODEL_OUTPUT_BYTES] __attribute__((aligned(16)));
static unsigned char activations[MODEL_ARENA_BYTES] __attribute__((aligned(16))) MODEL_ARENA_ATTRIBUTE;

"""
_TAIL = """\

#ifdef MODEL_OP_TICKS
const uint32_t op_count = {count};
const char *const op_types[] = {{{types}}};
uint64_t op_ticks[{count}];
#endif

const char *model_init(void) {{
    return NULL;
}}

const char *model_invoke(void) {{
    model({arguments});
    return NULL;
}}

uint32_t model_activation_bytes(void) {{
    return MODEL_ARENA_BYTES;
}}
"""


def installed_generator() -> str | None:
    """Return the generator and its version, None if it is not installed."""
    try:
        return f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return None


def generate_c(view: GraphView, interface: Interface, work: Path) -> tuple[str, dict[str, str], int]:
    """Return the generator and its version, a model as files of C code, and the bytes of the block of activations."""
    runtime = installed_generator()
    if runtime is None:
        raise ExportError(f"C code is written by {PACKAGE}, which is not installed: {INSTALL}")
    PREPARE_C(view)
    use_plain_names(view)
    source, target = work / "prepared.onnx", work / "generated.c"
    save(view, source)
    command = python(
        "-m", "emx_onnx_cgen", "compile", "--color", "never", "--model-name", "model",
        "--large-weight-threshold", "0", "--large-temp-threshold", "1", "--emit-data-file",
        str(source), str(target),
    )  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ExportError(f"{runtime} did not finish within {_SECONDS} s and was stopped") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise ExportError(f"{runtime} refuses the model: {lines[-1].strip()[:300]}")
    code, arena_bytes = _make_activations_static(target.read_text(), interface, runtime)
    files = {"model_generated.c": code, "model_generated_data.c": (work / "generated_data.c").read_text()}
    return runtime, files, arena_bytes


def _make_activations_static(code: str, interface: Interface, runtime: str) -> tuple[str, int]:
    """Return the code with its entry rewritten, and the bytes of the block."""
    entry = _ENTRY.search(code)
    if entry is None:
        raise ExportError(f"{runtime} writes an entry that is not known here: install the version of {INSTALL}")
    body = entry["body"]
    statements = _FREE.sub("", _CALL.sub("", _ALLOCATION.sub("", body)))
    if statements.strip() or "malloc(" in code[: entry.start()]:
        raise ExportError(f"{runtime} writes statements that are not known here: install the version of {INSTALL}")
    calls = list(_CALL.finditer(body))
    types = {int(m[1]): m[2] for m in _NODE.finditer(code)}
    buffers = _buffers(body, calls, types)
    arena_bytes = max(1, plan(list(dict.fromkeys(buffers.values()))))
    body = _FREE.sub("", _ALLOCATION.sub(lambda m: _placement(m, buffers), body))
    places = {int(m["node"]): place for place, m in enumerate(calls)}
    body = _CALL.sub(lambda m: f"    MODEL_OP({places[int(m['node'])]}, {m[0].strip()[:-1]});", body)
    rewritten = f"static void model({entry['parameters']}) {{\n{body}}}"
    quoted = ", ".join(f'"{types[int(m["node"])]}"' for m in calls)
    arrays = (("model_input", interface.inputs), ("model_output", interface.outputs))
    arguments = ", ".join(f"(void *)({array} + {offset})" for array, side in arrays for offset in offsets(side))
    tail = _TAIL.format(count=len(calls), types=quoted, arguments=arguments)
    return f"{_HEAD}{code[: entry.start()]}{rewritten}{code[entry.end() :]}{tail}", arena_bytes


def _buffers(body: str, calls: Sequence[re.Match[str]], types: dict[int, str]) -> dict[str, Buffer]:
    """Return the memory of every activation; those that share memory share a buffer."""
    sizes = {m["name"]: _size(m) for m in _ALLOCATION.finditer(body)}
    uses: dict[str, list[int]] = {name: [] for name in sizes}
    arguments = [re.findall(r"\w+", m["arguments"]) for m in calls]
    for place, names in enumerate(arguments):
        for name in filter(uses.__contains__, names):
            uses[name].append(place)
    buffers: dict[str, Buffer] = {}
    for place, (call, names) in enumerate(zip(calls, arguments, strict=True)):
        written = [n for n in names if uses.get(n, [-1])[0] == place]
        for name in written:
            last = uses[name][-1]
            dying = [n for n in names if n in buffers and uses[n][-1] == place and sizes[n] == sizes[name]]
            if types[int(call["node"])] in _IN_PLACE and dying and len(written) == 1:
                buffers[name] = buffers[dying[0]]
                buffers[name].last = last
            else:
                buffers[name] = Buffer(sizes[name], place, last)
    return buffers


def _size(allocation: re.Match[str]) -> int:
    element = _TYPE_BYTES.get(allocation["type"])
    if element is None:
        raise ExportError(f"an activation has the type '{allocation['type']}', which firmware cannot hold")
    dims = [int(d) for d in re.findall(r"\d+", allocation["dims"])]
    return element * prod(dims) * int(allocation["count"])


def _placement(allocation: re.Match[str], buffers: dict[str, Buffer]) -> str:
    name, dims = allocation["name"], allocation["dims"]
    pointer = f"(*{name}){dims}" if dims else f"*{name}"
    if name not in buffers:  # nobody writes or reads it
        return ""
    return f"    {allocation['type']} {pointer} = (void *)(activations + {buffers[name].offset});\n"
