"""What the events of saves cost, in instructions (callgrind) and in time: without a listener, with one, with a trace.

The program is events.cc. Instructions are those of the process, without the kernel's: the quotient of two runs with
different numbers of saves, so that the start of the process does not count.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

LISTENERS = ("off", "listener", "trace")
KINDS = ("blocking", "asynchronous")
COUNTED_SAVES = (20, 120)  # of the two runs under callgrind
TIMED_SAVES = 300  # of a turn
TURNS = 5


def measure_events(program: Path, scratch: Path) -> Iterator[tuple[str, str, float]]:
    """Yields figure, listener and value."""
    for kind in KINDS:
        for listener in LISTENERS:
            first, second = (_counts(program, scratch, listener, kind, saves) for saves in COUNTED_SAVES)
            saves = COUNTED_SAVES[1] - COUNTED_SAVES[0]
            for name, before, after in zip(("process", "call's thread"), first, second, strict=True):
                yield f"events of {kind} saves: instructions, {name}", listener, (after - before) / saves
        for _ in range(TURNS):
            for listener in LISTENERS:
                times = json.loads(_run([program], scratch, listener, kind, TIMED_SAVES))
                yield f"events of {kind} saves: us, call", listener, times["call"] * 1e6
                yield f"events of {kind} saves: us, CPUs", listener, times["cpu"] * 1e6


def _run(command: list[Path | str], scratch: Path, listener: str, kind: str, saves: int) -> str:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    words = [str(word) for word in command] + [str(scratch), listener, kind, str(saves)]
    # An old valgrind reports each call of openat2, which it does not know.
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-1000:]}")
    return done.stdout


def _counts(program: Path, scratch: Path, listener: str, kind: str, saves: int) -> tuple[int, int]:
    """Returns the instructions of the process, and of its first thread, which makes the calls."""
    out = scratch.with_name("callgrind")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    valgrind = ["valgrind", "-q", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={out}/out"]
    _run([*valgrind, program], scratch, listener, kind, saves)
    totals = {}
    for path in out.glob("out-*"):
        line = next(line for line in path.read_text().splitlines() if line.startswith("totals:"))
        totals[path.name] = int(line.split()[1])
    return sum(totals.values()), totals["out-01"]


def events_lines(by_figure: dict[str, dict[str, list[float]]]) -> list[str]:
    """Returns the rows; of several rounds and turns, the least. In parentheses: more than without a listener."""
    lines = []
    for figure, columns in by_figure.items():
        if figure.startswith("events of "):
            off, heard, traced = (min(columns[name]) for name in LISTENERS)
            cells = [f"{value:12,.0f} ({value / off - 1:+.2%})" for value in (heard, traced)]
            lines.append(f"{figure:58} {off:12,.0f}, listener{cells[0]}, trace{cells[1]}")
    return lines
