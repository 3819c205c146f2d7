"""Test files that are run twice: with stock code, and with Cairn in its place.

A test is lost if the test passes with stock code and not with Cairn. Each process of a run with Cairn appends the
number of its calls that reached the engine to the file that $PAIRED_TESTS_CALLS names.
"""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

Outcome = dict[str, str]  # by test: "passed", "skipped", or the first line of the error

_SECONDS_MAX = 1800  # for a file


class PairedTests:
    """The files in `folder`/tests; the reports go to the folders stock and cairn of `folder`."""

    def __init__(self, folder: Path, variables: Callable[[Path, str], dict[str, str]], *, keep: bool) -> None:
        """`variables` gives the environment of a run of a file in a mode, "stock" or "cairn".

        With `keep` a file that has a report is not run again.
        """
        self.folder = folder
        self.variables = variables
        self.keep = keep

    def report(self, files: list[Path], source: str, known: set[str]) -> int:
        """Runs the files, and prints both counts, the engine's calls and each lost test.

        Returns the exit code: 1 if a lost test is not `known`, or if no call reached the engine.
        """
        passed: dict[str, list[str]] = {"stock": [], "cairn": []}
        lost: dict[str, str] = {}
        calls = 0
        for file in files:
            by_mode = {mode: self._run(file, mode) for mode in passed}
            here = {mode: [name for name, what in found.items() if what == "passed"] for mode, found in by_mode.items()}
            for name in set(here["stock"]) - set(here["cairn"]):
                lost[name] = by_mode["cairn"].get(name) or next(iter(by_mode["cairn"].values()), "did not run")
            for mode, names in here.items():
                passed[mode] += names
            here_calls = self._engine_calls(file)
            calls += here_calls
            counts = f"stock passes {len(here['stock'])}, Cairn {len(here['cairn'])}"
            print(f"{file}: {counts}, {here_calls} engine calls", flush=True)
        for name, error in sorted(lost.items()):
            print(f"lost: {name}: {error}{' (known)' if name in known else ''}")
        (self.folder / "passed.txt").write_text("".join(f"{name}\n" for name in sorted(passed["cairn"])))
        counts = f"stock passes {len(passed['stock'])}, Cairn {len(passed['cairn'])}"
        print(f"{date.today()}, {source}: {counts}, {calls} engine calls")
        return 1 if lost.keys() - known or calls == 0 else 0

    def _report_of(self, file: Path, mode: str) -> Path:
        return self.folder / mode / f"{'.'.join(file.with_suffix('').parts)}.xml"

    def _run(self, file: Path, mode: str) -> Outcome:
        report = self._report_of(file, mode)
        if self.keep and report.exists():
            return dict(_outcomes(file, report))
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        calls = report.with_suffix(".calls")
        calls.write_text("")
        environment = {**os.environ, **self.variables(file, mode), "PAIRED_TESTS_CALLS": str(calls)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junit-xml", report, file]
        with report.with_suffix(".log").open("w") as log:
            try:
                subprocess.run(
                    [str(word) for word in command],
                    cwd=self.folder / "tests",
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=_SECONDS_MAX,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return {f"{file}": f"not done within {_SECONDS_MAX} s"}
        return dict(_outcomes(file, report)) if report.exists() else {f"{file}": "pytest wrote no report"}

    def _engine_calls(self, file: Path) -> int:
        """Returns the number of engine calls of all processes of the run with Cairn."""
        calls = self._report_of(file, "cairn").with_suffix(".calls")
        return sum(map(int, calls.read_text().split())) if calls.exists() else 0


def known_tests(file: Path) -> set[str]:
    """Returns the tests that may be lost, from a file with a test per line and comments."""
    return {line for line in file.read_text().splitlines() if line and not line.startswith("#")}


def _outcomes(file: Path, report: Path) -> Iterator[tuple[str, str]]:
    """Yields the tests of a report, by file, class and name, with their outcomes."""
    for case in ET.parse(report).iter("testcase"):
        name = f"{file}::{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        failure = next((child for child in case if child.tag in ("failure", "error")), None)
        if failure is not None:
            yield name, _error_in(failure)
        else:
            yield name, "skipped" if case.find("skipped") is not None else "passed"


def _error_in(failure: ET.Element) -> str:
    """Returns the last line that names an exception."""
    pattern = r"^(?:E\s+)?((?:\w+\.)*\w*(?:Error|Exception|Unsupported|Mismatch|UnsafeContent)\b.*)"
    lines = re.findall(pattern, failure.text or "", re.MULTILINE)
    return lines[-1][:200] if lines else (failure.get("message") or "failed").partition("\n")[0][:200]
