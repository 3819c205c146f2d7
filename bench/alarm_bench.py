"""The cost of the torn-snapshot alarm: the duration of an asynchronously staging call with and without the alarm.

Saves with and without the alarm take turns in one process. The figure of a pair is the quotient of the two calls'
wall times; the figure of a state is the median of its pairs.
"""

import gc
import shutil
import statistics
import time
from pathlib import Path

import torch

import cairn

PAIRS = 60
STATES = {"10,000 x 256 B": (10_000, 64), "200 x 2 MB": (200, 1 << 19), "16 x 64 MB": (16, 1 << 24)}


def seconds_of_call(made: cairn.AsyncSaver, state: dict[str, torch.Tensor], directory: Path) -> float:
    start = time.perf_counter()
    save = made.save(state, directory, asynchronous_staging=True)
    blocked = time.perf_counter() - start
    save.upload.result()
    return blocked


def pairs(state: dict[str, torch.Tensor], kind: str, scratch: Path, count: int) -> list[float]:
    found = []
    process = kind == "process"
    with (
        cairn.AsyncSaver(process=process) as guarded,
        cairn.AsyncSaver(process=process, torn_snapshot_alarm=False) as plain,
    ):
        for number in range(count + 1):
            turns = [(guarded, scratch / "guarded"), (plain, scratch / "plain")]
            seconds = {}
            for made, directory in turns if number % 2 else reversed(turns):
                seconds[directory.name] = seconds_of_call(made, state, directory)
            if number > 0:  # the first pair plans, and allocates the arenas
                found.append(seconds["guarded"] / seconds["plain"])
    return found


def measure_alarm(scratch: Path) -> dict[str, dict[str, float]]:
    """Returns the figures by state and kind of writer."""
    figures: dict[str, dict[str, float]] = {}
    for name, (count, elements) in STATES.items():
        state = {f"layers.{number}.weight": torch.rand(elements) for number in range(count)}
        for kind in ("thread", "process"):
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            gc.collect()
            gc.disable()
            of_all = pairs(state, kind, scratch, PAIRS if elements < 1 << 20 else PAIRS // 4)
            gc.enable()
            figures.setdefault(name, {})[kind] = statistics.median(of_all)
    shutil.rmtree(scratch, ignore_errors=True)
    return figures
