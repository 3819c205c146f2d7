"""How much memory something takes at its peak."""

from pathlib import Path


def kibibytes(name: str) -> int:
    """A line of /proc/self/status."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == f"{name}:")


class PeakMemory:
    """Counts from its creation: the resident memory that this process adds at its peak."""

    def __init__(self) -> None:
        self.before = kibibytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5\n")  # the high-water mark starts again from here

    def mib(self) -> float:
        return (kibibytes("VmHWM") - self.before) / 1024
