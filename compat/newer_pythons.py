"""Pythons that are newer than those of this machine: those of Debian's unstable suite, unpacked below build/pythons.

mmdebstrap unpacks the packages, and patchelf makes the interpreter start with the C library beside it: it runs
outside of the folder, as any other Python of the machine.
"""

import shutil
import subprocess
from pathlib import Path

RELEASES = ("3.14", "3.15")
LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def newer_python(release: str, folder: Path) -> Path:
    """Returns the interpreter of a release of RELEASES; `folder` is made anew if it lacks the interpreter."""
    root = folder / "debian"
    python = root / f"usr/bin/python{release}"
    if (root / "complete").exists():
        return python
    shutil.rmtree(root, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    packages = [f"python{each}{part}" for each in RELEASES for part in ("", "-venv")]
    command = [
        *("mmdebstrap", "--quiet", "--variant=extract", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"),
        '--aptopt=Acquire::Check-Valid-Until "false"',  # a mirror may be older than the validity of unstable's index
        *(f"--include={','.join(packages)},libgomp1,libstdc++6", "sid", root),
    ]
    subprocess.run([str(word) for word in command], check=True)
    for each in RELEASES:
        interpreter = root / f"usr/bin/python{each}"
        options = ("--set-interpreter", root / LOADER, "--force-rpath", "--set-rpath", root / LIBRARIES)
        subprocess.run(["patchelf", *(str(word) for word in options), str(interpreter)], check=True)
    (root / "complete").touch()
    return python
