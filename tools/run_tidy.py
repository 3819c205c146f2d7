"""Runs clang-tidy on the compile units that changed since they last passed.

A unit is identified by a hash of its text, of every included project header, of the flags and of .clang-tidy. The build
folder keeps the hashes of units that passed. Tests are left out, because GoogleTest's macros cause findings.
"""

import argparse
import concurrent.futures
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
UNITY = re.compile(r"unity_\d+_cxx\.cxx")


def included_files(source: Path) -> list[Path]:
    """Returns `source` and the project's headers that `source` includes, directly or not."""
    seen: dict[Path, None] = {source: None}
    waiting = [source]
    while waiting:
        file = waiting.pop()
        for name in INCLUDE.findall(file.read_text()):
            for folder in (ROOT / "include", ROOT / "src", file.parent):
                header = folder / name
                if header.is_file() and header not in seen:
                    seen[header] = None
                    waiting.append(header)
    return sorted(seen)


def fingerprint(unit: dict[str, str]) -> str:
    """Returns the hash that decides whether the unit must be checked again."""
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    digest.update(re.sub(r"\S*/(ccache|c\+\+)\b", "", unit["command"]).replace(str(ROOT), "").encode())
    for file in included_files(Path(unit["file"])):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def tidy(build: Path, unit: dict[str, str]) -> tuple[bool, str]:
    """Returns whether the unit is clean, and clang-tidy's output."""
    # The flags are those of the compiler that builds: Clang lacks some of GCC's warnings.
    extra = "--extra-arg=-Wno-unknown-warning-option"
    command = ["clang-tidy", "--quiet", extra, "-p", str(build), unit["file"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout or done.stderr


def sources_of(unit: dict[str, str]) -> list[Path]:
    """Returns the sources that a unit of a unity build includes, or else the source that the unit is."""
    file = Path(unit["file"])
    if not UNITY.match(file.name):
        return [file]
    return [Path(name) for name in INCLUDE.findall(file.read_text())]


def wanted(unit: dict[str, str], seen: set[Path]) -> bool:
    """Whether the unit's sources are sources of the project, not tests, and not yet in `seen`."""
    sources = sources_of(unit)
    first = sources[0]
    if first in seen or not first.is_relative_to(ROOT) or first.is_relative_to(ROOT / "build"):
        return False
    seen.update(sources)
    return first.is_file() and not first.name.endswith("_test.cc")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="a build folder with compile_commands.json")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    passed = arguments.build / "tidy"
    passed.mkdir(exist_ok=True)

    seen: set[Path] = set()
    units = json.loads((arguments.build / "compile_commands.json").read_text())
    units = [unit for unit in units if wanted(unit, seen)]
    units.sort(key=lambda unit: -sum(source.stat().st_size for source in sources_of(unit)))  # the longest first
    stale = [(unit, mark) for unit in units if not (mark := passed / fingerprint(unit)).exists()]
    problems = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda item: tidy(arguments.build, item[0]), stale)
        for (_, mark), (clean, text) in zip(stale, results, strict=True):
            if clean:
                mark.touch()
            else:
                problems += 1
                print(text.strip(), flush=True)
    print(f"clang-tidy: {len(units)} units, {len(stale)} looked at, {problems} with problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
