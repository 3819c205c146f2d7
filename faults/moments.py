"""When a fault strikes a save: at an exact place of its protocol, at a sight of its directory, or after a while."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from job import Job
from orders import Strike

# How the ranks of a save talk to each other (the top of src/checkpointer/save.cc): who plans what, who writes what,
# what was written, whether it is committed. A save that makes other calls is another protocol: these places mean
# nothing then.
CALLS = ["gather", "scatter", "gather", "broadcast"]
GATHER_PLANS, SCATTER_ASSIGNMENTS, GATHER_WRITTEN, BROADCAST_VERDICT = range(4)


@dataclass(frozen=True)
class AtCall:
    """The rank strikes itself, before or after one of these calls."""

    call: int
    after: bool

    def strike(self, signal: int) -> Strike:
        return Strike(self.call, self.after, signal)

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} call {self.call} ({CALLS[self.call]})"


@dataclass(frozen=True)
class After:
    """So long after the save began."""

    seconds: float

    def wait(self, _job: Job, _directory: Path) -> None:
        time.sleep(self.seconds)

    def __str__(self) -> str:
        return f"after {self.seconds * 1e3:.1f} ms"


@dataclass(frozen=True)
class AtSight:
    """So long after the directory shows a step of the save; at the save's end, if it was too quick to be seen."""

    sign: str
    seconds: float

    def wait(self, job: Job, directory: Path) -> None:
        before = _Sight(directory)
        while not SIGNS[self.sign](before, _Sight(directory)) and not job.has_news(0):
            time.sleep(20e-6)
        time.sleep(self.seconds)

    def __str__(self) -> str:
        return f"{self.seconds * 1e3:.1f} ms after the directory shows it {self.sign}"


Moment = AtCall | After | AtSight


class _Sight:
    """What a directory shows at some moment."""

    def __init__(self, directory: Path) -> None:
        self.names = set(_names(directory))
        self.private = {name: set(_names(directory / name)) for name in self.names if _is_private(name)}
        try:
            self.metadata = (directory / ".metadata").stat().st_ino
        except FileNotFoundError:
            self.metadata = 0

    def data(self) -> set[str]:
        return {name for name in self.names if name.endswith(".distcp")}

    def new_private(self, before: "_Sight") -> set[str]:
        """Names in private folders that were not there before."""
        return {name for folder in self.private.keys() - before.private.keys() for name in self.private[folder]}


def _is_private(name: str) -> bool:
    """Whether this is the private folder of a save. The lock of the directory begins with the same letters."""
    return name.startswith(".cairn-") and name != ".cairn-lock"


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []


SIGNS: dict[str, Callable[[_Sight, _Sight], bool]] = {
    "claimed": lambda before, now: bool(now.private.keys() - before.private.keys()),
    "writing": lambda before, now: any(name.endswith(".distcp") for name in now.new_private(before)),
    "publishing": lambda before, now: len(now.data() - before.data()) > 0,
    "published": lambda before, now: len(now.data() - before.data()) > 1,
    "sealed": lambda before, now: "metadata" in now.new_private(before),
    "committed": lambda before, now: now.metadata != before.metadata,
    "cleaning": lambda before, now: len(before.data() - now.data()) > 0,
}


def draw(chance: random.Random, typical_seconds: float) -> Moment:
    """A moment of a save, which usually takes `typical_seconds`. Half of them are anywhere in it."""
    match chance.randrange(4):
        case 0:
            return AtCall(chance.randrange(len(CALLS)), chance.random() < 0.5)
        case 1:
            return AtSight(chance.choice(list(SIGNS)), chance.uniform(0, 0.002))
        case _:
            return After(chance.uniform(0, 1.2 * typical_seconds))
