"""SIGSTOP during a save: a rank that hangs without dying, as with a dead disk or a debugger, and continues later.

The remaining ranks report an error within the timeout of their group. The stopped rank, continued long after, ends with
an error too, or was the rank that committed. It damages nothing, even if a second job has saved meanwhile.
"""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import kills
import moments
from job import Job
from moments import GATHER_WRITTEN, SCATTER_ASSIGNMENTS, AtCall
from tally import Problem, Tally
from trial import Trial

_TIMEOUT_SECONDS = 1.0  # of the jobs with stopped ranks: each stop takes as long
_COORDINATOR, _OTHER = 0, 1


@dataclass(frozen=True)
class Stop:
    """With `overtaken`, a second job saves while the rank is stopped. Otherwise the next save follows the stop."""

    victim: int
    moment: AtCall
    overtaken: bool
    first: bool = False  # a first save into the directory

    @property
    def whole_saves(self) -> int:
        """The number of saves of the job before: none before a save that plans."""
        return int(not self.first and self.moment.place in moments.REUSED)

    def __str__(self) -> str:
        overtaken = ", another job saves meanwhile" if self.overtaken else ""
        first = ", in a first save" if self.first else ""
        return f"rank {self.victim} stopped {self.moment}{first}{overtaken}"


def chosen_stops(sample: bool) -> Iterator[Stop]:
    """Yields the most critical places in a sample; otherwise every place, in an overwrite and in a first save."""
    if sample:
        yield Stop(_OTHER, AtCall(SCATTER_ASSIGNMENTS, True), overtaken=False)
        yield Stop(_OTHER, AtCall(SCATTER_ASSIGNMENTS, True), overtaken=True)
        yield Stop(_OTHER, AtCall(SCATTER_ASSIGNMENTS, True), overtaken=True, first=True)
        yield Stop(_OTHER, AtCall(GATHER_WRITTEN, False), overtaken=True)
        yield Stop(_COORDINATOR, AtCall(GATHER_WRITTEN, True), overtaken=False)
        yield Stop(_COORDINATOR, AtCall(GATHER_WRITTEN, True), overtaken=True)
        return
    for first in (False, True):
        for victim in (_COORDINATOR, _OTHER):
            for place in moments.PLANNED:
                for after in (False, True):
                    for overtaken in (False, True):
                        yield Stop(victim, AtCall(place, after), overtaken, first)


def stops(folder: Path, tally: Tally, sample: bool) -> None:
    """Stops each rank, at places of the protocol."""
    for number, stop in enumerate(chosen_stops(sample)):
        tally.tried += 1
        trial = Trial(folder / f"checkpoint-{number}")
        try:
            _carry_out(stop, trial, tally)
        except Exception as error:
            tally.problems.append(f"{stop}: {error}")


def _carry_out(stop: Stop, trial: Trial, tally: Tally) -> None:
    with Job(kills.RANKS, _TIMEOUT_SECONDS) as job:
        if stop.whole_saves:
            trial.save(job)
        elif not stop.first:
            with Job(kills.RANKS) as earlier:
                trial.save(earlier)
        old, new = trial.in_place, trial.next_step()
        job.start("save", trial.directory, new, {stop.victim: stop.moment.strike(signal.SIGSTOP, stop.whole_saves)})
        job.await_stopped(stop.victim)
        acknowledged = _hear(job, set(range(kills.RANKS)) - {stop.victim}, tally)
        allowed: set[int | None] = {new} if acknowledged else {old, new}
        if stop.overtaken:
            with Job(kills.RANKS) as next_job:
                trial.save_beside(next_job)
            allowed = {trial.in_place}
        else:
            trial.look(allowed, "while a rank is stopped")
        job.signal(stop.victim, signal.SIGCONT)
        reply = job.await_reply(stop.victim)
        assert reply is not None
        if reply.ok and not acknowledged and not stop.overtaken:
            allowed = {new}
        if not reply.ok:
            tally.found["ended with an error"] += 1
        which = trial.look(allowed, "after a stopped rank went on")
        tally.found["new" if which == new else "overtaken" if stop.overtaken else "old"] += 1
        tally.found["with litter"] += bool(trial.litter())
    with Job(kills.RANKS) as job:
        trial.save(job)


def _hear(job: Job, ranks: set[int], tally: Tally) -> bool:
    """Whether a rank that is not stopped received success."""
    stopped_at = time.monotonic()
    acknowledged = False
    for rank in ranks:
        reply = job.await_reply(rank)
        if reply is None:
            raise Problem(f"rank {rank}, which was not stopped, is gone")
        acknowledged |= reply.ok
        if not reply.ok:
            kills.judge(tally, reply, stopped_at, job.timeout_seconds)
    return acknowledged
