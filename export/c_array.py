"""Write a .tflite file as a C array, in the form of TensorFlow Lite Micro projects."""

import re
from pathlib import Path

_BYTES_PER_LINE = 12
_CHUNK = 1 << 16
_ALIGNMENT = 16


def c_identifier(name: str) -> str:
    """Return a valid C identifier made from any name."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII) or "model"
    return f"_{identifier}" if identifier[0].isdigit() else identifier


def write_c_array(source: Path, header: Path, *, name: str) -> None:
    """Write a header with ``const unsigned char NAME[]``, aligned to 16 bytes, and ``const unsigned int NAME_len``."""
    identifier = c_identifier(name)
    guard = f"{identifier.upper()}_H_"
    size = source.stat().st_size
    with source.open("rb") as data, header.open("w", encoding="ascii", newline="\n") as out:
        out.write(f"#ifndef {guard}\n#define {guard}\n\n")
        out.write("#if defined(__cplusplus)\n")
        out.write(f"#define {guard}ALIGN alignas({_ALIGNMENT})\n")
        out.write("#else\n")
        out.write(f"#define {guard}ALIGN __attribute__((aligned({_ALIGNMENT})))\n#endif\n\n")
        out.write(f"{guard}ALIGN static const unsigned char {identifier}[] = {{\n")
        while chunk := data.read(_CHUNK // _BYTES_PER_LINE * _BYTES_PER_LINE):
            for start in range(0, len(chunk), _BYTES_PER_LINE):
                line = ", ".join(f"0x{b:02x}" for b in chunk[start : start + _BYTES_PER_LINE])
                out.write(f"  {line},\n")
        out.write(f"}};\nstatic const unsigned int {identifier}_len = {size};\n\n#endif  // {guard}\n")
