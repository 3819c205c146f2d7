"""Wall and CPU seconds of a call."""

import gc
import resource
import time
from collections.abc import Callable
from typing import Any


def cpu_seconds() -> float:
    """User and system time of this process, all threads. Write-back by the kernel's own threads is not included."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def seconds_of(action: Callable[[], Any]) -> tuple[float, float]:
    """Returns wall and CPU seconds of a call. The call's result is freed outside the measurement."""
    gc.collect()
    gc.disable()
    cpu, start = cpu_seconds(), time.perf_counter()
    result = action()
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    gc.enable()
    del result
    return wall, cpu
