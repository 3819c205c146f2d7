"""SIGKILL during a save, at random and at chosen moments.

After each kill the directory holds the old or the new checkpoint, whole, and the new checkpoint if any rank received
success. The surviving ranks report success, or an error of Cairn's within the timeout of their group. The next save
leaves no private files behind.
"""

import itertools
import random
import signal
import statistics
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import moments
from job import Job, Reply
from moments import AtCall, Moment
from tally import Problem, Tally
from trial import Trial

RANKS = 2
_LATE_SECONDS = 30.0  # a busy machine may exceed a timeout by this; the tally has the longest time


@dataclass(frozen=True)
class Kill:
    """A kill: after `whole_saves` undisturbed saves of a new job the `victims` die during a further save."""

    victims: tuple[int, ...]
    moment: Moment
    whole_saves: int = 1
    must_be: str = ""  # "old" or "new" if the moment determines the checkpoint

    def __str__(self) -> str:
        return f"rank {' and '.join(map(str, self.victims))} {self.moment}, {self.whole_saves} whole saves before"


def typical_seconds(trial: Trial) -> float:
    """Returns the typical seconds of a save on this machine. Requires the collectives that name the moments."""
    with Job(RANKS) as job:
        replies = [reply for _ in range(5) for reply in trial.save(job)]
    for number, reply in enumerate(replies):
        expected = moments.calls_at(moments.places_of(number // RANKS))
        if reply.calls != expected:
            raise Problem(f"a save makes the calls {reply.calls}, not {expected}")
    return statistics.median(reply.ended - reply.begun for reply in replies)


def judge(tally: Tally, reply: Reply, struck_at: float, timeout_seconds: float) -> None:
    """Notes the error of a surviving rank. The error must be Cairn's, and come within the timeout of the group."""
    seconds = max(reply.ended - struck_at, 0)
    tally.error(reply.kind, seconds)
    if not reply.is_cairns:
        raise Problem(f"{reply.kind} is no error of Cairn's: {reply.text}")
    if seconds > timeout_seconds + _LATE_SECONDS:
        raise Problem(f"a rank reports only after {seconds:.1f} s: {reply.text}")


@dataclass
class Killer:
    """Carries out kills in a directory, one after the other."""

    trial: Trial
    tally: Tally

    def carry_out(self, kill: Kill, which: str = "") -> None:
        """Carries out a kill. `which` tells in a problem's text how to repeat the kill."""
        self.tally.tried += 1
        try:
            self._carry_out(kill)
        except Exception as error:
            raise Problem(f"{which}{kill}: {error}") from error

    def _carry_out(self, kill: Kill) -> None:
        with Job(RANKS) as job:
            for _ in range(kill.whole_saves):
                self.trial.save(job)
            acknowledged = self._strike(job, kill)
        old, new = self.trial.in_place, self.trial.step
        allowed: dict[str, Collection[int | None]] = {"old": {old}, "new": {new}, "": {old, new}}
        which = self.trial.look(
            allowed["new" if acknowledged else kill.must_be], f"after the kill, acknowledged: {acknowledged}"
        )
        self.tally.found["new" if which == new else "old" if old is not None else "nothing"] += 1
        self.tally.found["with litter"] += bool(self.trial.litter())

    def _strike(self, job: Job, kill: Kill) -> bool:
        """Strikes, and returns whether any rank reports that the new checkpoint is committed."""
        moment, strikes = kill.moment, {}
        if isinstance(moment, AtCall):
            strikes = dict.fromkeys(kill.victims, moment.strike(signal.SIGKILL, kill.whole_saves))
        job.start("save", self.trial.directory, self.trial.next_step(), strikes)
        if not isinstance(moment, AtCall):
            moment.wait(job, self.trial.directory)
            for rank in kill.victims:
                job.signal(rank, signal.SIGKILL)
        last_words = [job.await_reply(rank) for rank in kill.victims]
        struck_at = time.monotonic()
        acknowledged = any(reply.ok for reply in last_words if reply)
        for rank in set(range(RANKS)) - set(kill.victims):
            reply = job.await_reply(rank)
            if reply is None:
                raise Problem(f"rank {rank}, which lives on, is gone")
            acknowledged |= reply.ok
            if reply.ok:
                self.tally.found["with an acknowledged save"] += 1
            else:
                judge(self.tally, reply, struck_at, job.timeout_seconds)
                if kill.must_be == "new" and "be committed" not in reply.text:
                    raise Problem(f"rank {rank} does not say that the save may be committed: {reply.text}")
        return acknowledged

    def tidy(self) -> None:
        """Saves once more after the last kill."""
        with Job(RANKS) as job:
            self.trial.save(job)


def random_kill(seed: int, index: int, typical_seconds: float, whole_saves_max: int = 3) -> Kill:
    chance = random.Random(f"{seed} {index}")
    victim = chance.randrange(RANKS)
    whole_saves = chance.randrange(whole_saves_max + 1)
    return Kill((victim,), moments.draw(chance, typical_seconds, whole_saves), whole_saves)


def overwrites(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Kills a random rank at a random moment of an overwrite."""
    killer = Killer(Trial(folder / "checkpoint"), tally)
    typical = typical_seconds(killer.trial)
    for index in tally.further(indices):
        killer.carry_out(random_kill(seed, index, typical), f"kill {index} of seed {seed}: ")
    killer.tidy()


def chosen_kills() -> Iterator[Kill]:
    """Yields a kill for each place between two steps of the protocol, with the checkpoint that must then be there."""
    coordinator, other = 0, 1
    planning = [moments.VOTE, moments.GATHER_PLANS, moments.SCATTER_ASSIGNMENTS]
    for whole_saves, places in ((0, planning), (1, moments.REUSED)):
        for place, after in itertools.product(places, (False, True)):
            moment = AtCall(place, after)
            committed = place == moments.BROADCAST_VERDICT
            yield Kill((coordinator,), moment, whole_saves, "new" if committed else "old")
            yield Kill((coordinator, other), moment, whole_saves)
            if moment == AtCall(moments.GATHER_WRITTEN, True):
                yield Kill((other,), moment, whole_saves)
            elif committed:
                yield Kill((other,), moment, whole_saves, "new" if after else "")
            else:
                yield Kill((other,), moment, whole_saves, "old")


def places(folder: Path, tally: Tally) -> None:
    """Kills each rank, and both ranks, before and after each collective, for example between publishing and commit."""
    killer = Killer(Trial(folder / "checkpoint"), tally)
    typical_seconds(killer.trial)
    for kill in chosen_kills():
        killer.carry_out(kill)
    killer.tidy()


def both(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Kills both ranks at a random moment of an overwrite, as when a whole job is killed."""
    killer = Killer(Trial(folder / "checkpoint"), tally)
    typical = typical_seconds(killer.trial)
    for index in tally.further(indices):
        kill = replace(random_kill(seed, index, typical), victims=(0, 1))
        killer.carry_out(kill, f"kill {index} of seed {seed}: ")
    killer.tidy()


def firsts(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Kills a random rank at a random moment of the first save into a directory.

    The directory then holds no checkpoint or a whole checkpoint.
    """
    typical = typical_seconds(Trial(folder / "measured"))
    for index in tally.further(indices):
        killer = Killer(Trial(folder / f"checkpoint-{index}", exists=index % 2 == 0), tally)
        killer.carry_out(random_kill(seed, index, typical, 0), f"kill {index} of seed {seed}: ")
        killer.tidy()
