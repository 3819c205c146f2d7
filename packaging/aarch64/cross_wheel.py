"""Builds the manylinux wheel for aarch64 with Debian's cross compiler: `./dev aarch64 wheel`.

1. emulated_root.py makes a root of Debian 12 for aarch64, with the headers of fmt, CLI11, GoogleTest and Python.
2. ISA-L is built as for the wheel of x86-64 (packaging/build_wheel.py), by the cross compiler.
3. The wheel is built from the checkout. The build folder, build/aarch64/build, serves the C++ tests too.
4. auditwheel gives the wheel its tag. The command refuses a wheel that needs more than manylinux_2_34, and a program
   that a kernel with pages of 64 KiB could not load.

The wheel is written to build/aarch64/dist.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from emulated_root import BUILD, FOLDER, ROOT, make_root

sys.path[:0] = [str(ROOT / "packaging"), str(ROOT / "tools")]
from build_wheel import build_isal, run  # noqa: E402
from layered_environment import layered_environment  # noqa: E402

DIST = BUILD / "dist"
BUILD_FOLDER = BUILD / "build"
TOOLCHAIN = ROOT / "packaging/aarch64/toolchain.cmake"
GLIBC_MAX = (2, 34)
LARGEST_PAGE = 65_536


def build_wheel(python: Path, isal: Path) -> Path:
    """Builds the wheel, before auditwheel. `python` has the packages of packaging/requirements.txt."""
    out = BUILD / "unrepaired"
    shutil.rmtree(out, ignore_errors=True)
    nanobind = [str(python), "-m", "nanobind", "--cmake_dir"]
    defines = {
        "CMAKE_TOOLCHAIN_FILE": TOOLCHAIN,
        "ISAL_INCLUDE_DIR": isal / "include",
        "ISAL_LIBRARY": isal / "lib/libisal.a",
        "Python_INCLUDE_DIR": FOLDER / "usr/include/python3.11",  # of the stable ABI: any Python's of aarch64 would do
        "nanobind_DIR": subprocess.run(nanobind, capture_output=True, text=True, check=True).stdout.strip(),
        "CAIRN_MANYLINUX": "ON",
        "CAIRN_WARNINGS_ARE_ERRORS": "ON",
        "CAIRN_BUILD_TESTS": "ON",
        "CAIRN_TEST_OPTIONS": "-O0",
    }
    settings = [f"--config-setting=cmake.define.{name}={value}" for name, value in defines.items()]
    targets = "_engine;cairn_cli;cairn_writer_process"
    run(
        *(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, *settings),
        *(f"--config-setting=build-dir={BUILD_FOLDER}", f"--config-setting=build.targets={targets}", ROOT),
        environment={
            "CCACHE_BASEDIR": str(ROOT),
            "CCACHE_NOHASHDIR": "1",
            "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0))),
            "_PYTHON_HOST_PLATFORM": "linux-aarch64",  # the tag of the wheel
        },
    )
    (wheel,) = out.glob("*.whl")
    return wheel


def check_wheel(wheel: Path) -> None:
    """Checks the tag, and that the kernel can map the programs at pages of 64 KiB."""
    tag = re.fullmatch(r"cairn_checkpoint-[\d.]+-cp310-abi3-manylinux_(\d+)_(\d+)_aarch64\.whl", wheel.name)
    if tag is None or (int(tag[1]), int(tag[2])) > GLIBC_MAX:
        sys.exit(f"{wheel.name}: expected at most manylinux_{GLIBC_MAX[0]}_{GLIBC_MAX[1]}_aarch64")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        programs = [name for name in archive.namelist() if name.endswith((".so", "/cairn-writer", "scripts/cairn"))]
        assert len(programs) == 3, programs
        for program in programs:
            command = ["readelf", "--program-headers", "--wide", archive.extract(program, folder)]
            headers = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            alignments = [int(line.split()[-1], 16) for line in headers.splitlines() if line.split()[:1] == ["LOAD"]]
            if not alignments or min(alignments) < LARGEST_PAGE:
                sys.exit(f"{program}: segments aligned to {alignments}, expected {LARGEST_PAGE}")


def make_wheel() -> Path:
    """Builds and checks the wheel; returns its path."""
    make_root()
    python = layered_environment(BUILD / "environment", {ROOT / "packaging/requirements.txt": ()})
    isal = build_isal(BUILD / "isa-l", {"CMAKE_TOOLCHAIN_FILE": TOOLCHAIN})
    wheel = build_wheel(python, isal)
    shutil.rmtree(DIST, ignore_errors=True)
    run(
        *(python, "-m", "auditwheel", "repair", "--plat", "auto", "--only-plat", "--wheel-dir", DIST, wheel),
        environment={"PATH": f"{python.parent}:{os.environ['PATH']}"},
    )
    (repaired,) = DIST.glob("*.whl")
    check_wheel(repaired)
    print(f"{repaired.relative_to(ROOT)}  {repaired.stat().st_size / 1e6:.1f} MB")
    return repaired


if __name__ == "__main__":
    make_wheel()
