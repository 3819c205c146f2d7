"""Runs clang-tidy on the compile units that changed since they last passed.

A unit is identified by a hash of its text, of every included project header, of the flags and of .clang-tidy. The build
folder keeps the hashes of units that passed. Tests are left out, because GoogleTest's macros cause findings.

Most of the time goes into the headers of the standard library and of fmt. Units with equal flags are therefore checked
together, as one unit that includes them. If that unit has a problem, each of its units is checked alone: names of two
units may collide.
"""

import argparse
import concurrent.futures
import hashlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
UNITY = re.compile(r"unity_\d+_cxx\.cxx")
MAIN = re.compile(r"^int main\(", re.MULTILINE)
GROUP_BYTES = 200_000
# The flags are those of the compiler that builds: Clang lacks some of GCC's warnings. .clang-tidy enables the warnings
# of reserved names, which are no errors of the compiler here: NOLINT would not reach those.
WARNINGS = (
    "-Wno-unknown-warning-option",
    "-Wreserved-identifier",
    "-Wreserved-macro-identifier",
    "-Wno-error=reserved-identifier",
    "-Wno-error=reserved-macro-identifier",
)


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
    digest.update(" ".join(WARNINGS).encode())
    digest.update(re.sub(r"\S*/(ccache|c\+\+)\b", "", unit["command"]).replace(str(ROOT), "").encode())
    for file in included_files(Path(unit["file"])):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def flags_of(unit: dict[str, str]) -> tuple[str, ...]:
    """Returns the unit's flags, without compiler and files."""
    words = shlex.split(unit["command"])
    while not words[0].startswith("-"):
        words.pop(0)
    return tuple(words[: words.index("-o")])


def tidy(files: list[str], flags: tuple[str, ...], place: Path) -> tuple[bool, str]:
    """Checks the files as one unit, written to `place` if there are several. Returns whether the unit is clean, and
    clang-tidy's output."""
    if len(files) > 1:
        # Every fuzz target defines this function.
        renamed = "#undef LLVMFuzzerTestOneInput\n#define LLVMFuzzerTestOneInput fuzz_target_{}\n"
        place.write_text("".join(f'{renamed.format(i)}#include "{file}"\n' for i, file in enumerate(files)))
    command = ["clang-tidy", "--quiet", str(place) if len(files) > 1 else files[0], "--", *flags, *WARNINGS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout or done.stderr


def tidy_group(group: list[dict[str, str]], place: Path) -> list[tuple[bool, str]]:
    """Checks the units together and, after a problem, alone. Returns for each unit as tidy()."""
    flags = flags_of(group[0])
    clean, text = tidy([unit["file"] for unit in group], flags, place)
    if clean or len(group) == 1:
        return [(clean, text)] * len(group)
    print(f"{place.name}: {len(group)} units are checked alone after: {first_problem(text)}", flush=True)
    return [tidy([unit["file"]], flags, place) for unit in group]


def first_problem(text: str) -> str:
    """Returns the first line about a problem."""
    return next((line for line in text.splitlines() if "error:" in line or "warning:" in line), text[:200])


def groups_of(units: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """Returns the units by flags, in groups of at most GROUP_BYTES of sources.

    Alone stays a unit with main(), and a unit of test doubles, whose calls throw: clang-tidy takes their exceptions for
    those of the functions that they stand for.
    """
    groups: list[list[dict[str, str]]] = []
    open_groups: dict[tuple[str, ...], tuple[list[dict[str, str]], int]] = {}
    for unit in units:
        flags, size = flags_of(unit), size_of(unit)
        group, used = open_groups.get(flags, ([], 0))
        alone = any("testing" in source.parts or MAIN.search(source.read_text()) for source in sources_of(unit))
        if alone or not group or used + size > GROUP_BYTES:
            group, used = [], 0
            groups.append(group)
        group.append(unit)
        if not alone:
            open_groups[flags] = (group, used + size)
    return groups


def size_of(unit: dict[str, str]) -> int:
    """Returns the bytes of the unit's sources."""
    return sum(source.stat().st_size for source in sources_of(unit))


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
    marks = {unit["file"]: passed / fingerprint(unit) for unit in units}
    stale = [unit for unit in units if not marks[unit["file"]].exists()]
    groups = sorted(groups_of(stale), key=lambda group: -sum(map(size_of, group)))  # the longest first
    places = [passed / f"group_{number}.cc" for number in range(len(groups))]
    problems = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for group, results in zip(groups, pool.map(tidy_group, groups, places), strict=True):
            for unit, (clean, text) in zip(group, results, strict=True):
                if clean:
                    marks[unit["file"]].touch()
                else:
                    problems += 1
                    print(text.strip(), flush=True)
    print(f"clang-tidy: {len(units)} units, {len(stale)} looked at in {len(groups)} groups, {problems} with problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
