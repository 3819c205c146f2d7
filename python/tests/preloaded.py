"""Libraries for LD_PRELOAD that replace functions of libc."""

import shutil
import subprocess
from pathlib import Path

import pytest


def library(source: str, folder: Path) -> Path:
    """Compiles the C `source` into a library for LD_PRELOAD. Skips the test where no C compiler is installed."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for a library that replaces system calls")
    (folder / "preloaded.c").write_text(source)
    target = folder / "preloaded.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(target), str(folder / "preloaded.c"), "-ldl"]
    subprocess.run(command, check=True)
    return target
