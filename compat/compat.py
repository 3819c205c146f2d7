"""Runs the tests on the oldest and the newest torch that Cairn supports: `./dev compat [VERSION...]`.

1. Each version has an environment, build/compat/torch-VERSION, which sees the packages of .venv after its own
   (environments.py). torch comes from PyPI, and imports on a machine without CUDA.
2. With `--python 3.12` the environment has that Python, and its own packages; torch is 2.13.0, or each VERSION.
3. pytest runs in the environment: on the newest version with the Python of .venv the whole suite, otherwise the files
   of tests.txt. A test that fails, and is not in known.txt for this version, fails the command; so does a test of
   known.txt that passes.
4. In an environment with an older torch every name of Cairn that needs torch raises the same ImportError.
5. Stock torch of older versions saves a checkpoint, and Cairn reads it with the torch of .venv (stock_files.py).
   With `--files` the command does this step alone.

Prints a line per version, with the date. `--record` puts the results into docs/measurements, of which
tools/docs/versions_page.py makes docs/versions.md.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from environments import ENVIRONMENTS, HERE, ROOT, environment_of

NEWEST = "2.15.0"  # beside torch 2.13, the version of ./dev test
VERSIONS = ("2.9.0", NEWEST)
VERSION_OF_PYTHONS = "2.13.0"  # which has wheels for Python 3.10 to 3.14
REFUSED_VERSIONS = ("2.6.0",)
FILES_VERSIONS = ("2.2.0", "2.6.0")
SECONDS_MAX = 3600

REFUSAL = """
import cairn
found = set()
for name in [*cairn.__all__, "filesystem", "staging"]:
    try:
        getattr(cairn, name)
    except ImportError as error:
        found.add(str(error))
(message,) = found
assert message.startswith("Cairn needs torch"), message
print("every name that needs torch says:", message)
"""

Outcome = dict[str, str]  # by test: "passed", "skipped", or the first line of the error


def run_tests(version: str, release: str, tests: list[str]) -> Outcome:
    """Step 3. Without `tests` the whole suite."""
    python = environment_of(version, release)
    report = ENVIRONMENTS / f"tests-{release}-{version}.xml"
    report.unlink(missing_ok=True)
    side_by_side = [] if tests else ["-n", (os.cpu_count() or 1) + 1, "--dist", "loadfile"]  # as ./dev test
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junit-xml", report, *side_by_side, *tests]
    subprocess.run([str(word) for word in command], cwd=ROOT, timeout=SECONDS_MAX, check=False)
    return dict(outcomes(report))


def outcomes(report: Path) -> Iterator[tuple[str, str]]:
    """By test, as known.txt names it: ``test_save.py::test_name[parameter]``; a file that does not import is a test."""
    for case in ET.parse(report).iter("testcase"):
        module = re.search(r"\btest_\w+", case.get("classname", "") or case.get("name", ""))
        file = f"{module[0]}.py" if module else ""
        name = f"{file}::{case.get('name')}" if case.get("classname") else file
        result = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                result = (child.get("message") or "failed").strip().split("\n")[0]
            elif child.tag == "skipped":
                result = "skipped"
        yield name, result


def known_failures(version: str) -> dict[str, str]:
    """Of known.txt: the reasons by test. A line is VERSION, the test, and the reason after " # ".

    VERSION is that of torch, and with --python VERSION/PYTHON.
    """
    known = {}
    for line in (HERE / "known.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            words, _, reason = line.partition(" # ")
            release, _, test = words.strip().partition(" ")
            if release == version:
                known[test.strip()] = reason
    return known


def listed_tests() -> list[str]:
    lines = (line.partition("#")[0].strip() for line in (HERE / "tests.txt").read_text().splitlines())
    return [f"python/tests/{line}" for line in lines if line]


def try_version(version: str, release: str, tests: list[str], *, records: bool) -> bool:
    """Runs and prints. Returns whether all is as known.txt says."""
    found = run_tests(version, release, tests)
    name = f"{version}, Python {release}" if release else version
    known = known_failures(version) | known_failures(f"{version}/{release}")
    failed = {test: error for test, error in found.items() if error not in ("passed", "skipped")}
    count = {kind: sum(result == kind for result in found.values()) for kind in ("passed", "skipped")}
    for test, error in failed.items():
        print(f"torch {name}: {test}: {f'known: {known[test]}' if test in known else f'FAILED: {error}'}")
    mended = sorted(test for test in known if found.get(test) == "passed")
    for test in mended:
        print(f"torch {name}: {test} passes: take it out of known.txt")
    print(
        f"torch {name}: {date.today()}, {count['passed']} passed, {count['skipped']} skipped, {len(failed)} failed, "
        f"{len(failed.keys() & known.keys())} of them known",
        flush=True,
    )
    counts = {**count, "failed": len(failed), "known": len(failed.keys() & known.keys())}
    if records:
        record(version, release, tests, counts)
    return bool(found) and failed.keys() <= known.keys() and not mended


def record(version: str, release: str, tests: list[str], counts: dict[str, int]) -> None:
    """Puts the result in the place of an earlier one in docs/measurements, for docs/versions.md."""
    file = ROOT / "docs/measurements" / ("platforms.json" if release else "torch.json")
    kept: dict[str, Any] = json.loads(file.read_text())
    command = f"./dev compat {f'--python {release} ' if release else ''}{version}"
    run = {"torch": version, "date": str(date.today()), "command": command, **counts}
    if release:
        run |= {"platform": platform.machine(), "python": release}
    else:
        run["tests"] = "compat/tests.txt" if tests else "all"
    same = ("torch", "platform", "python")
    others = [each for each in kept["results"] if any(each.get(key) != run.get(key) for key in same)]
    kept["results"] = [*others, run]
    file.write_text(json.dumps(kept, indent=2) + "\n")


def refuses(version: str) -> bool:
    """Step 4."""
    command = [str(environment_of(version)), "-c", REFUSAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"torch {version}: {date.today()}, {done.stdout.strip() or f'FAILED: {done.stderr}'}", flush=True)
    return done.returncode == 0


def read_files_of(version: str) -> bool:
    """Step 5."""
    folder = ENVIRONMENTS / f"files-{version}"
    program = HERE / "stock_files.py"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    for python, task in ((environment_of(version), "save"), (Path(sys.executable), "load")):
        command = [str(python), str(program), task, str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"torch {version}: {task} FAILED\n{done.stdout}{done.stderr}")
            return False
    print(f"torch {version}: {date.today()}, files of stock torch {version}: {done.stdout.strip()}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev compat", description=__doc__.split("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of torch; {' and '.join(VERSIONS)}")
    parser.add_argument("--files", action="store_true", help="only have stock torch save, and Cairn read")
    parser.add_argument("--python", default="", metavar="RELEASE", help="as 3.12, in place of the Python of .venv")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--tests", nargs="+", metavar="TEST", help="only these, from python/tests")
    chosen.add_argument("--main", action="store_true", help=f"the files of tests.txt on {NEWEST} too")
    chosen.add_argument("--whole", action="store_true", help="the whole suite on every VERSION")
    parser.add_argument("--record", action="store_true", help="put the results into docs/measurements")
    parser.add_argument(
        "--environment", action="store_true", help="only make the environments, and print their Pythons"
    )
    options = parser.parse_args()
    if options.record and options.tests:
        parser.error("--record is for whole runs")
    versions = options.versions or default_versions(options)
    if options.environment:
        print("\n".join(str(environment_of(version, options.python)) for version in versions))
        return 0
    if options.files:
        return 0 if good_for_all(read_files_of, versions) else 1

    def tests_of(version: str) -> list[str]:
        if options.tests:
            return [f"python/tests/{test}" for test in options.tests]
        is_main = version == NEWEST and not options.python and not options.main
        return [] if options.whole or is_main else listed_tests()

    def passes(version: str) -> bool:
        return try_version(version, options.python, tests_of(version), records=options.record)

    good = good_for_all(passes, versions)
    if not options.versions and not options.python and not options.tests:
        good &= good_for_all(refuses, REFUSED_VERSIONS)
        good &= good_for_all(read_files_of, FILES_VERSIONS)
    return 0 if good else 1


def default_versions(options: argparse.Namespace) -> tuple[str, ...]:
    if options.files:
        return FILES_VERSIONS
    return (VERSION_OF_PYTHONS,) if options.python else VERSIONS


def good_for_all(task: Callable[[str], bool], versions: Iterable[str]) -> bool:
    """Whether `task` succeeds for all versions; it runs for each of them."""
    return sum(not task(version) for version in versions) == 0


if __name__ == "__main__":
    sys.exit(main())
