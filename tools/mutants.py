"""Changes the sources of a part one place at a time, and looks whether a test of the part fails.

Steps, for each of a random selection of changes (mutants; universalmutator makes them, of one line each):

1. Compile the changed source. A mutant that does not compile, or whose object code is that of the original, counts
   neither as killed nor as a survivor.
2. Run the part's test programs until one fails, each in shards at the same time: most tests wait. A program that takes
   many times as long as without the change has failed.
3. Note the outcome in build/mutants/results.jsonl, by the Git tree of src/. A run goes on where an earlier run stopped
   that had the same sources.

Each worker has a copy of the sources and a build of its own. The sources of the repository are not changed.
"""

import argparse
import concurrent.futures
import contextlib
import difflib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build/mutants"
RESULTS = HOME / "results.jsonl"
# The tests of each part, the fastest first.
TESTS = {
    "commit": (
        "commit_test",
        "commit_exhaustive_test",
        "checkpoint_test",
        "writer_test",
        "save_test",
        "save_exhaustive_test",
    ),
    "save_plan": ("save_plan_test", "save_test"),
}
SHARDS = 8  # of a test program
SLOWNESS = 5.0  # a test that takes so many times its usual time, and a minute, has failed
CONFIGURATION = (
    "-GNinja",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DCAIRN_TEST_OPTIONS=-O0",
    "-DCMAKE_UNITY_BUILD=OFF",
)


@dataclass(frozen=True)
class Mutant:
    source: str  # below ROOT
    text: str  # of the changed source
    line: int
    before: str
    after: str

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.source}\0{self.text}".encode()).hexdigest()[:16]


def run(*command: object, cwd: Path | None = None, timeout: float | None = None) -> int:
    """Returns the exit status; 124 after the time-out."""
    try:
        done = subprocess.run(
            [str(word) for word in command], cwd=cwd, capture_output=True, check=False, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return 124
    return done.returncode


def mutants_of(source: str) -> list[Mutant]:
    """Returns the changes of a source, except for those of comments and includes."""
    original = (ROOT / source).read_text()
    lines = original.splitlines()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / source, folder)
        name = Path(source).name
        command = [sys.executable, "-m", "universalmutator.genmutants", name, "--noCheck", "--mutantDir", folder]
        if run(*command, cwd=Path(folder)) != 0:
            raise SystemExit(f"universalmutator fails for {source}")
        for file in Path(folder).glob(f"{Path(name).stem}.mutant.*"):
            text = file.read_text()
            changed = [
                (number, "\n".join(lines[number:end]), "\n".join(text.splitlines()[new:new_end]))
                for tag, number, end, new, new_end in difflib.SequenceMatcher(
                    None, lines, text.splitlines(), autojunk=False
                ).get_opcodes()
                if tag != "equal"
            ]
            if len(changed) != 1:
                continue
            number, before, after = changed[0]
            words, new_words = before.split("//")[0].split(), after.split("//")[0].split()
            if words and not words[0].startswith("#") and words != new_words:
                found.append(Mutant(source, text, number + 1, before.strip(), after.strip()))
    return found


def in_random_order(part: str, seed: int) -> list[Mutant]:
    """Returns the mutants of the part: one of each line, then a second one of each line, and so on."""
    dice = random.Random(seed)
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path in sorted((ROOT / "src" / part).rglob("*.cc")):
        if not path.name.endswith("_test.cc"):
            for mutant in mutants_of(str(path.relative_to(ROOT))):
                by_line.setdefault((mutant.source, mutant.line), []).append(mutant)
    lines = sorted(by_line)
    dice.shuffle(lines)
    ordered: list[Mutant] = []
    while lines:
        for line in lines:
            choices = by_line[line]
            ordered.append(choices.pop(dice.randrange(len(choices))))
        lines = [line for line in lines if by_line[line]]
    return ordered


class Worker:
    """A copy of the sources with a build."""

    def __init__(self, number: int, tests: tuple[str, ...]) -> None:
        self._tree = HOME / f"tree-{number}"
        self._build = HOME / f"build-{number}"
        self._tests = tests
        shutil.rmtree(self._tree, ignore_errors=True)
        self._tree.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", self._tree], input=archive, check=True)
        if (
            run("cmake", "-S", self._tree, "-B", self._build, *CONFIGURATION) != 0
            or self._make("cairn_writer_process", *tests) != 0
        ):
            raise SystemExit(f"the build in {self._build} fails")
        self._seconds = {test: self._time_of(test) for test in tests}

    def outcome_of(self, mutant: Mutant) -> str:
        """Returns "survived", "equal", "does not compile", or the test that has failed."""
        source = self._tree / mutant.source
        original = source.read_text()
        (unit,) = self._build.rglob(f"{source.name}.o")
        before = unit.read_bytes()
        source.write_text(mutant.text)
        try:
            if self._make(unit.relative_to(self._build)) != 0:
                return "does not compile"
            if unit.read_bytes() == before:
                return "equal"
            for test in self._tests:
                if self._make(test) != 0:
                    return "does not compile"
                if self._run(test, max(60.0, SLOWNESS * self._seconds[test])) != 0:
                    return test
            return "survived"
        finally:
            source.write_text(original)
            self._make(unit.relative_to(self._build))

    def _make(self, *targets: object) -> int:
        return run("ninja", "-C", self._build, "-j1", *targets)

    def _run(self, test: str, timeout: float) -> int:
        """Returns 0 if all shards pass. The first failure ends the others."""
        command = [str(self._build / "bin" / test), "--gtest_fail_fast", "--gtest_brief=1"]
        shards = [
            subprocess.Popen(
                command,
                cwd=self._tree,
                env=dict(os.environ, GTEST_TOTAL_SHARDS=str(SHARDS), GTEST_SHARD_INDEX=str(index)),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for index in range(SHARDS)
        ]
        deadline = time.monotonic() + timeout
        try:
            while any(shard.poll() is None for shard in shards):
                if any(shard.poll() for shard in shards) or time.monotonic() > deadline:
                    return 1
                time.sleep(0.05)
            return int(any(shard.returncode for shard in shards))
        finally:
            for shard in shards:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shard.pid, signal.SIGKILL)  # with its writers
                shard.wait()

    def _time_of(self, test: str) -> float:
        begin = time.monotonic()
        if self._run(test, 1800.0) != 0:
            raise SystemExit(f"{test} fails without a change")
        return time.monotonic() - begin


class Results:
    """The outcomes for a Git tree of src/, in RESULTS. Thread-safe."""

    def __init__(self, sources: str, mutants: list[Mutant], count: int) -> None:
        self._sources = sources
        self._count = count
        self._lock = threading.Lock()
        keys = {mutant.key for mutant in mutants}
        entries = map(json.loads, RESULTS.read_text().splitlines() if RESULTS.exists() else [])
        self._entries = [entry for entry in entries if entry["sources"] == sources and entry["key"] in keys]
        known = {entry["key"] for entry in self._entries}
        self._waiting = iter([mutant for mutant in mutants if mutant.key not in known])

    def next(self) -> Mutant | None:
        """Returns a mutant without an outcome; None once there are outcomes of enough mutants that count."""
        with self._lock:
            return next(self._waiting, None) if len(self.counted()) < self._count else None

    def add(self, mutant: Mutant, outcome: str) -> None:
        entry = {
            "sources": self._sources,
            "key": mutant.key,
            "source": mutant.source,
            "line": mutant.line,
            "before": mutant.before,
            "after": mutant.after,
            "outcome": outcome,
        }
        with self._lock:
            self._entries.append(entry)
            with RESULTS.open("a") as results:
                results.write(json.dumps(entry) + "\n")
            print(f"{len(self.counted())}: {mutant.source}:{mutant.line}: {outcome}", flush=True)

    def counted(self) -> list[dict[str, Any]]:
        return [entry for entry in self._entries if entry["outcome"] not in ("equal", "does not compile")]

    def summary(self) -> str:
        survivors = [entry for entry in self.counted() if entry["outcome"] == "survived"]
        survivors.sort(key=lambda entry: (entry["source"], entry["line"]))
        text = [f"{entry['source']}:{entry['line']}: {entry['before']}  ->  {entry['after']}" for entry in survivors]
        return "\n".join([*text, f"{len(self.counted())} mutants, {len(survivors)} survived"])


def judge(number: int, tests: tuple[str, ...], results: Results) -> None:
    """Judges mutants on a worker of its own until `results` has enough."""
    if (mutant := results.next()) is None:
        return
    worker = Worker(number, tests)
    while mutant is not None:
        results.add(mutant, worker.outcome_of(mutant))
        mutant = results.next()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=TESTS)
    parser.add_argument("--count", type=int, default=250, help="of mutants that compile (default: 250)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: 2)")
    arguments = parser.parse_args()

    HOME.mkdir(parents=True, exist_ok=True)
    git = subprocess.run(["git", "rev-parse", "HEAD:src"], cwd=ROOT, capture_output=True, check=True, text=True)
    sources = git.stdout.strip()
    results = Results(sources, in_random_order(arguments.part, arguments.seed), arguments.count)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        judged = [pool.submit(judge, number, TESTS[arguments.part], results) for number in range(arguments.jobs)]
        for done in judged:
            done.result()
    print(results.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
