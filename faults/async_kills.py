"""SIGKILL of trainers and writers while a save runs in the background.

After each kill the directory holds the old or the new checkpoint, whole. It holds the new checkpoint if any rank
received success, or if only trainers with writer processes died after all ranks had reported their state as staged. A
surviving rank gets an error of Cairn's, from the future or from its next call, and its next save works. No process, no
open file and no private folder is left.
"""

import random
import signal
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import descendants
import moments
from job import Job
from kills import judge
from moments import After, AtSight
from orders import AT_RETURN, AsyncSave, Strike, Whom
from tally import Problem, Tally
from trial import Trial

import cairn

TIMEOUT_SECONDS = 30.0  # of a process group: longer than the deadline of its saves, which then fail on all ranks
_LATEST_SECONDS = 60.0  # longer than a surviving writer needs
_CLOSING_SECONDS = 20.0
# The collectives of the ranks' planning: in the first save of a job, and in later saves that reuse the plan.
PLANNING_CALLS, REUSE_CALLS = ["smallest", "gather", "scatter"], ["smallest"]


@dataclass(frozen=True)
class AtPlanning:
    """Before or after a collective of the planning, or `seconds` later.

    After the last collective the state is being staged.
    """

    call: int
    after: bool
    seconds: float = 0.0

    def __str__(self) -> str:
        place = f"{'after' if self.after else 'before'} planning call {self.call}"
        return f"{self.seconds * 1e3:.1f} ms {place}" if self.seconds else place


@dataclass(frozen=True)
class AtReturn:
    """`seconds` after async_save has returned, on each rank separately."""

    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds * 1e3:.1f} ms after the call has returned"


AsyncMoment = After | AtSight | AtPlanning | AtReturn


@dataclass(frozen=True)
class AsyncKill:
    """A kill: after `whole_saves` undisturbed saves of a new job the victims die during a further save."""

    how: AsyncSave
    ranks: int
    victims: tuple[int, ...]
    whom: Whom
    moment: AsyncMoment
    whole_saves: int

    @property
    def survivors(self) -> list[int]:
        """The ranks with surviving trainers."""
        return [rank for rank in range(self.ranks) if self.whom == "writer" or rank not in self.victims]

    def __str__(self) -> str:
        victims = " and ".join(map(str, self.victims))
        who = f"{self.whom} of rank {victims} of {self.ranks}"
        return f"{who} {self.moment}, {self.whole_saves} whole saves before, {self.how}"


def draw(chance: random.Random, how: AsyncSave, whom: Whom, typical_seconds: float) -> AsyncKill:
    """Draws a kill. A third strike a first save; the victims are one rank or all ranks of a job of one or two."""
    ranks = chance.choice([1, 2, 2])
    victims = chance.choice([(rank,) for rank in range(ranks)] + [tuple(range(ranks))])
    whole_saves = chance.choice([0, 1, 2])
    calls = REUSE_CALLS if whole_saves else PLANNING_CALLS
    moment: AsyncMoment
    match chance.randrange(6):
        case 0 if ranks > 1:
            moment = AtPlanning(chance.randrange(len(calls)), chance.random() < 0.5)
        case 1 if ranks > 1:
            moment = AtPlanning(len(calls) - 1, True, chance.uniform(0, 0.01))
        case 2:
            moment = AtSight(chance.choice(list(moments.SIGNS)), chance.uniform(0, 0.002))
        case 3:
            moment = AtReturn(chance.choice([0.0, chance.uniform(0, 0.02)]))
        case _:
            moment = After(chance.uniform(0, 1.2 * typical_seconds))
    return AsyncKill(how, ranks, victims, whom, moment, whole_saves)


def certain(how: AsyncSave, whom: Whom) -> list[AsyncKill]:
    """The first kills of every run, on every machine: a kill too early for its save, and a kill too late."""
    return [
        AsyncKill(how, 2, (1,), whom, AtPlanning(0, after=False), whole_saves=1),
        AsyncKill(how, 1, (0,), whom, AtSight("committed", 0.0), whole_saves=1),
    ]


@dataclass
class AsyncKiller:
    """Carries out kills in a directory, one after the other."""

    trial: Trial
    tally: Tally

    def carry_out(self, kill: AsyncKill, which: str) -> None:
        """Carries out a kill. `which` tells in a problem's text how to repeat the kill."""
        self.tally.tried += 1
        try:
            self._carry_out(kill)
        except Exception as error:
            raise Problem(f"{which}{kill}: {error}") from error

    def _carry_out(self, kill: AsyncKill) -> None:
        with Job(kill.ranks, TIMEOUT_SECONDS, kill.how) as job:
            for _ in range(kill.whole_saves):
                self.trial.save(job)
            before = {rank: job.open_files(rank) for rank in kill.survivors if kill.whole_saves}
            must_be_new = self._strike(job, kill)
            which = self._look_for_the_newest(must_be_new)
            if kill.whom == "writer":
                self._require_clean(kill, must_be_new)
                self.trial.save(job)
                for rank, files in before.items():
                    require_as_before(job, rank, files)
        descendants.await_none()
        if kill.whom != "writer":
            self.trial.look({which}, "when no process is left")
            self._require_clean(kill, must_be_new)
            with Job(kill.ranks, TIMEOUT_SECONDS, kill.how) as job:
                self.trial.save(job)
            descendants.await_none()

    def _strike(self, job: Job, kill: AsyncKill) -> bool:
        """Strikes, and returns whether the new checkpoint must be there.

        The new checkpoint must be there if a rank received success, or if a surviving writer process has the whole
        staged state.
        """
        old = self.trial.in_place
        job.start("save", self.trial.directory, self.trial.next_step(), _strikes(kill))
        if isinstance(kill.moment, After | AtSight):
            kill.moment.wait(job, self.trial.directory)
            if kill.whom != "trainer":
                _await_writers(job, kill.victims)
            for rank in kill.victims:
                job.signal(rank, signal.SIGKILL, kill.whom)
        struck_at = time.monotonic()
        replies = {rank: job.await_reply(rank) for rank in job.ranks}
        outlived = kill.how.process and kill.whom == "trainer" and job.staged == set(job.ranks)
        self.tally.found["staged when trainers died"] += outlived
        self.tally.found["of a first save"] += old is None
        for rank, reply in replies.items():
            if reply is None and rank in kill.survivors:
                raise Problem(f"rank {rank}, whose trainer lives on, is gone")
            if reply is not None and not reply.ok:
                judge(self.tally, reply, struck_at, job.timeout_seconds)
                if outlived:
                    raise Problem(f"all was staged, and rank {rank} reports an error: {reply.text}")
        acknowledged = any(reply.ok for reply in replies.values() if reply)
        self.tally.found["with an acknowledged save"] += acknowledged
        return acknowledged or outlived

    def _look_for_the_newest(self, must_be_new: bool) -> int | None:
        """Returns the step from which a job that starts now would resume."""
        old, new = self.trial.in_place, self.trial.step
        latest = cairn.latest(self.trial.directory, wait=_LATEST_SECONDS)
        allowed: Collection[int | None] = {new} if must_be_new else {old, new}
        which = self.trial.look(allowed, f"after the kill, the new one must be there: {must_be_new}")
        if (latest is None) != (which is None):
            raise Problem(f"cairn.latest finds {latest}, but the directory holds step {which}")
        self.tally.found["new" if which == new else "old" if old is not None else "nothing"] += 1
        return which

    def _require_clean(self, kill: AsyncKill, must_be_new: bool) -> None:
        """Requires that no private folder is left, if a process survived to remove the folder."""
        litter = self.trial.litter()
        self.tally.found["with litter"] += bool(litter)
        alone = kill.whom == "writer" and kill.ranks == 1
        outlived = kill.how.process and kill.whom == "trainer" and must_be_new
        if litter and (alone or outlived):
            raise Problem(f"litter is left, though whoever made it, or its trainer, has lived on: {litter}")


def _strikes(kill: AsyncKill) -> dict[int, Strike]:
    match kill.moment:
        case AtPlanning(call, after, seconds):
            strike = Strike(call, after, signal.SIGKILL, seconds, kill.whom)
        case AtReturn(seconds):
            strike = Strike(AT_RETURN, True, signal.SIGKILL, seconds, kill.whom)
        case _:
            return {}
    return dict.fromkeys(kill.victims, strike)


def _await_writers(job: Job, ranks: Collection[int]) -> None:
    """Returns when each rank has a writer to kill, or has already reported the end of its save."""
    while not all(job.writers(rank) or job.has_news(rank) for rank in ranks):
        time.sleep(20e-6)


def require_as_before(job: Job, rank: int, before: Mapping[str, int]) -> None:
    """Requires that the trainer holds no more open files than before, at most a writer and two arenas.

    The check is repeated, because threads may still be ending.
    """
    until = time.monotonic() + _CLOSING_SECONDS
    while True:
        now, writers = job.open_files(rank), job.writers(rank)
        more = {kind: count for kind, count in now.items() if count > max(before.get(kind, 0), 2 * (kind == "memfd"))}
        if not more and len(writers) <= 1:
            return
        if time.monotonic() > until:
            raise Problem(f"rank {rank} has {writers} as writers, and open {dict(now)}; before {before}")
        time.sleep(0.005)


def _typical_seconds(trial: Trial, how: AsyncSave) -> float:
    """Returns the typical seconds of a save on this machine, first saves of a job included."""
    with Job(2, TIMEOUT_SECONDS, how) as job:
        replies = [reply for _ in range(5) for reply in trial.save(job)]
    calls = [PLANNING_CALLS] * len(job.ranks) + [REUSE_CALLS] * 4 * len(job.ranks)
    if [reply.calls for reply in replies] != calls:
        raise Problem(f"the saves of a job make the calls {[reply.calls for reply in replies]}")
    descendants.await_none()
    return statistics.quantiles([reply.ended - reply.begun for reply in replies], n=4)[2]


def _random(
    folder: Path, tally: Tally, seed: int, indices: range, make: Callable[[random.Random], tuple[AsyncSave, Whom]]
) -> None:
    typical = _typical_seconds(Trial(folder / "measured"), AsyncSave(process=True))
    lasting = AsyncKiller(Trial(folder / "checkpoint"), tally)
    for index in tally.further(indices):
        chance = random.Random(f"{seed} {index}")
        how, whom = make(chance)
        first = certain(how, whom)
        kill = first[index] if index < len(first) else draw(chance, how, whom, typical)
        killer = lasting
        if kill.whole_saves == 0:
            killer = AsyncKiller(Trial(folder / f"first-{index}", exists=index % 2 == 0), tally)
        killer.carry_out(kill, f"kill {index} of seed {seed}: ")


def trainers(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Kills the trainer of one rank or of all; the writer processes survive."""
    _random(
        folder, tally, seed, indices, lambda chance: (AsyncSave(True, staged_later=chance.random() < 0.3), "trainer")
    )


def writers(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Kills the writer process of one rank or of all; the trainers survive, and continue to save."""
    _random(
        folder,
        tally,
        seed,
        indices,
        lambda chance: (AsyncSave(True, chance.random() < 0.3, asks=chance.random() < 0.6), "writer"),
    )


def both(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Kills the trainer and the writer process of one rank or of all."""
    _random(folder, tally, seed, indices, lambda chance: (AsyncSave(True, chance.random() < 0.3), "both"))


def threads(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Kills the trainer of one rank or of all, and with the trainer its writing threads."""
    _random(folder, tally, seed, indices, lambda chance: (AsyncSave(False, chance.random() < 0.3), "trainer"))
