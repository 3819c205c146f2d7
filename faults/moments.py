"""Moments of a fault: an exact place in the protocol of a save, a visible step in its directory, or a delay."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from job import Job
from orders import Strike

# The places of a save (the top of src/save/save.cc), and the collective of each: the vote for an earlier plan,
# the local plans, the assignments, the results of the writes, the decision. If a save makes other calls, its protocol
# has changed, and these places mean nothing.
VOTE, GATHER_PLANS, SCATTER_ASSIGNMENTS, GATHER_WRITTEN, BROADCAST_VERDICT = (
    "the vote",
    "the local plans",
    "the assignments",
    "the results",
    "the verdict",
)
CALLS = {
    VOTE: "smallest",
    GATHER_PLANS: "gather",
    SCATTER_ASSIGNMENTS: "scatter",
    GATHER_WRITTEN: "gather",
    BROADCAST_VERDICT: "broadcast",
}
# The places of the first save of a job, which plans, and of its later saves.
PLANNED = list(CALLS)
REUSED = [VOTE, GATHER_WRITTEN, BROADCAST_VERDICT]


def places_of(whole_saves: int) -> list[str]:
    """Returns the places of a save after so many saves of the job."""
    return REUSED if whole_saves else PLANNED


def calls_at(places: list[str]) -> list[str]:
    """Returns the collective of each place."""
    return [CALLS[place] for place in places]


@dataclass(frozen=True)
class AtCall:
    """The rank strikes itself before or after the collective at a place."""

    place: str
    after: bool

    def strike(self, signal: int, whole_saves: int) -> Strike:
        return Strike(places_of(whole_saves).index(self.place), self.after, signal)

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.place}"


@dataclass(frozen=True)
class After:
    """`seconds` after the start of the save."""

    seconds: float

    def wait(self, _job: Job, _directory: Path) -> None:
        time.sleep(self.seconds)

    def __str__(self) -> str:
        return f"after {self.seconds * 1e3:.1f} ms"


@dataclass(frozen=True)
class AtSight:
    """`seconds` after the directory shows a step of the save.

    If the step is too quick to be seen, the moment comes after the save's end.
    """

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
    """The names in a directory at some moment."""

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
        """Returns the names in private folders that are new since `before`."""
        return {name for folder in self.private.keys() - before.private.keys() for name in self.private[folder]}


def _is_private(name: str) -> bool:
    """Whether the name belongs to the private folder of a save. The directory's lock has an equal prefix."""
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


def draw(chance: random.Random, typical_seconds: float, whole_saves: int) -> Moment:
    """Draws a moment of a save that usually takes `typical_seconds`, after `whole_saves` of the job.

    Half of the moments are spread over the whole save.
    """
    match chance.randrange(4):
        case 0:
            return AtCall(chance.choice(places_of(whole_saves)), chance.random() < 0.5)
        case 1:
            return AtSight(chance.choice(list(SIGNS)), chance.uniform(0, 0.002))
        case _:
            return After(chance.uniform(0, 1.2 * typical_seconds))
