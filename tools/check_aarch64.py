"""Checks that the sources of the engine and of the tool compile for aarch64: a pass without code generation.

Debian's cross compiler reads the sources with the warnings of the release preset as errors. The headers of ISA-L, fmt
and CLI11 do not depend on the architecture; links in the build folder keep the other headers of /usr/include, which are
those of this machine, out of the search path. The Python extension and the tests are left out.
"""

import argparse
import concurrent.futures
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILER = "aarch64-linux-gnu-g++"
LIBRARIES = ("isa-l", "isa-l.h", "fmt", "CLI")
FLAGS = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
DEFINITIONS = ("-DFMT_HEADER_ONLY=1", '-DCAIRN_WRITER_FOLDER="libexec/cairn"')


def sources() -> list[Path]:
    """Returns the sources of the engine and of the tool, without tests."""
    found = [file for folder in ("src", "cli") for file in (ROOT / folder).rglob("*.cc")]
    return sorted(file for file in found if not file.name.endswith("_test.cc") and "testing" not in file.parts)


def linked_headers(build: Path) -> Path:
    """Returns a folder with links to the headers of the libraries."""
    folder = build / "include"
    folder.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        if not (folder / name).exists():
            (folder / name).symlink_to(Path("/usr/include") / name)
    return folder


def complaints(file: Path, headers: Path) -> str:
    """Returns the compiler's messages about a source; empty if the source compiles."""
    places = [f"-I{ROOT / folder}" for folder in ("include", "src", "cli")]
    command = [COMPILER, *FLAGS, *DEFINITIONS, *places, "-isystem", str(headers), str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    start = time.monotonic()
    headers = linked_headers(ROOT / "build" / "aarch64")
    files = sources()
    problems = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for text in pool.map(lambda file: complaints(file, headers), files):
            if text:
                problems += 1
                print(text.strip(), flush=True)
    print(f"aarch64: {len(files)} sources, {problems} with problems, {time.monotonic() - start:.0f} s")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
