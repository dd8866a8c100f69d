"""cffi build script: declares and compiles `sidestream.ipc_ext._ring` from `ipc_ext/csrc`."""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

CSRC = Path("ipc_ext/csrc")


def declarations(header: str) -> str:
    """Return what cffi understands of a C header: all but the lines for the preprocessor."""
    return "\n".join(line for line in header.splitlines() if not line.startswith("#"))


ffibuilder = FFI()
ffibuilder.cdef(declarations((CSRC / "api.h").read_text()))
ffibuilder.cdef('extern "Python" void ss_call_python(void *);')
ffibuilder.set_source(
    "sidestream.ipc_ext._ring",
    '#include "api.h"',
    sources=[str(path) for path in sorted(CSRC.glob("*.c"))],
    include_dirs=[str(CSRC)],
    depends=[str(path) for path in sorted(CSRC.glob("*.h"))],
    extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra"],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
