"""Runs of the tool `cairn`: time and peak memory of the process."""

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOOL = Path(__file__).resolve().parents[1] / "build/release/bin/cairn"
SAMPLE_SECONDS = 0.005


@dataclass(frozen=True)
class ToolRun:
    """A run of the tool `cairn` in its own process. `peak_mib` is of the whole process."""

    seconds: float
    cpu: float
    peak_mib: float
    exit_status: int


class PeakOf:
    """Watches the greatest resident memory of a process, by the kernel's high-water mark.

    The rusage of a process is no measure: it includes the memory of the process that started it.
    """

    def __init__(self, pid: int) -> None:
        self.kibibytes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            try:
                lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
            except OSError:
                return
            self.kibibytes = max([self.kibibytes, *(int(line.split()[1]) for line in lines if "VmHWM" in line)])

    def mib(self) -> float:
        """Returns the peak, and ends the watch."""
        self._ended.set()
        self._thread.join()
        return self.kibibytes / 1024


def run_tool(words: Sequence[str | Path], under: Sequence[str] = ()) -> ToolRun:
    """Runs ``cairn WORDS``; `under` are the words of a program that executes the command behind them in its place."""
    start = time.perf_counter()
    process = subprocess.Popen([*under, TOOL, *words], stdout=subprocess.DEVNULL)
    peak = PeakOf(process.pid)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    return ToolRun(seconds, usage.ru_utime + usage.ru_stime, peak.mib(), process.returncode)
