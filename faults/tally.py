"""The tries and findings of a program of faults."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class Problem(Exception):
    """A promise of Cairn that did not hold."""


@dataclass
class Tally:
    """A kind of fault: the number of tries, the findings, and the broken promises."""

    name: str
    sought: tuple[str, ...] = ()  # findings that random tries must have: `further`
    tried: int = 0
    found: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # reported by the surviving ranks, by class
    slowest_error_seconds: float = 0.0  # from the fault to the last report of an error
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _started: float = field(default_factory=time.monotonic)

    def error(self, kind: str, seconds: float) -> None:
        """Counts a rank's error, reported `seconds` after the fault."""
        self.errors[kind] += 1
        self.slowest_error_seconds = max(self.slowest_error_seconds, seconds)

    def has_met_all(self) -> bool:
        return all(self.found[what] for what in self.sought)

    def further(self, indices: range) -> Iterator[int]:
        """Yields the numbers, and then more numbers until all that is sought was found; at most ten times as many.

        Random moments depend on the speed of the machine: a given count of tries may miss a finding.
        """
        yield from indices
        for number in range(indices.stop, indices.stop + 9 * len(indices)):
            if self.has_met_all():
                return
            yield number

    def finish(self) -> None:
        self.seconds = time.monotonic() - self._started

    def as_dict(self) -> dict[str, Any]:
        members = ("name", "tried", "found", "errors", "slowest_error_seconds", "problems", "seconds")
        return {member: getattr(self, member) for member in members}

    def __str__(self) -> str:
        found = ", ".join(f"{count} {what}" for what, count in sorted(self.found.items()))
        errors = ", ".join(f"{count} {kind}" for kind, count in sorted(self.errors.items())) or "none"
        slowest = f", the last after {self.slowest_error_seconds:.2f} s" if self.errors else ""
        verdict = f"{len(self.problems)} PROBLEMS" if self.problems else "ok"
        return f"{self.name}: {self.tried} tried: {found}; errors: {errors}{slowest}; {self.seconds:.0f} s; {verdict}"
