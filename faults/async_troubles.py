"""Failing storage, and hanging processes, while a save runs in the background.

Every rank gets the error with its cause, in the future or in the next call. The old checkpoint is loaded. The ranks
continue, and their next save works after the fault.
"""

import itertools
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import descendants
import failing_sync
from async_kills import REUSE_CALLS, TIMEOUT_SECONDS, require_as_before
from job import Job, Reply
from moments import SIGNS, AtSight
from orders import AT_RETURN, AsyncSave, Strike
from tally import Problem, Tally
from trial import Trial

_DISK_BYTES = 16 << 20
_FREE_BYTES = 1 << 20  # free bytes of a full disk: less than any rank writes
_LIMIT_BYTES = 256 << 10  # size limit of a file on the rank whose writes fail: less than a file of a save
_DEADLINE_SECONDS = 2.0  # of the saves with a hanging process: each takes as long
_HOW = [AsyncSave(process, asks=asks) for process in (True, False) for asks in (True, False)]


@dataclass(frozen=True)
class Trouble:
    """A fault of the storage, and words that every rank's error must contain."""

    name: str
    starts: Callable[[Job, Path], AbstractContextManager[None]]
    cause: str


@contextmanager
def _full_disk(_job: Job, directory: Path) -> Iterator[None]:
    ballast = directory.parent / "ballast"
    state = os.statvfs(directory)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_frsize - _FREE_BYTES)
    yield
    ballast.unlink()


@contextmanager
def _failing_write(job: Job, _directory: Path) -> Iterator[None]:
    """Fails the writes of the last rank alone."""
    writer = job.who_writes(job.ranks[-1])
    before = resource.prlimit(writer, resource.RLIMIT_FSIZE)
    resource.prlimit(writer, resource.RLIMIT_FSIZE, (_LIMIT_BYTES, before[1]))
    yield
    resource.prlimit(writer, resource.RLIMIT_FSIZE, before)


@contextmanager
def _failing_sync(_job: Job, _directory: Path) -> Iterator[None]:
    failing_sync.switch().touch()
    yield
    failing_sync.switch().unlink()


_TROUBLES = (
    Trouble("full disk", _full_disk, "No space left"),
    Trouble("failing write", _failing_write, "File too large"),
    Trouble("failing fsync", _failing_sync, "Input/output error"),
)


def disks(folder: Path, tally: Tally, seed: int, count: int) -> None:
    """Tries each fault with each type of save, on one rank and on two, in an order drawn from the seed."""
    ways = list(itertools.product(_HOW, (1, 2)))
    random.Random(seed).shuffle(ways)
    trials = [(trouble, how, ranks) for how, ranks in ways for trouble in _TROUBLES]
    with _small_disk(folder / "disk") as disk:
        for number, (trouble, how, ranks) in enumerate(itertools.islice(itertools.cycle(trials), count)):
            tally.tried += 1
            place = disk if trouble.starts is _full_disk else folder
            try:
                _go_through(trouble, Trial(place / f"checkpoint-{number}"), how, ranks, tally)
            except Exception as error:
                tally.problems.append(f"{trouble.name}, {ranks} ranks, {how}: {error}")


@contextmanager
def _small_disk(place: Path) -> Iterator[Path]:
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(place)]
    subprocess.run(mount, check=True)  # needs root
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _go_through(trouble: Trouble, trial: Trial, how: AsyncSave, ranks: int, tally: Tally) -> None:
    with Job(ranks, TIMEOUT_SECONDS, how) as job:
        trial.save(job)
        trial.save(job)
        before = {rank: job.open_files(rank) for rank in job.ranks}
        old = trial.in_place
        with trouble.starts(job, trial.directory):
            job.start("save", trial.directory, trial.next_step())
            replies = job.await_all()
        for reply in replies:
            _require_cause(reply, trouble.cause, tally)
        trial.look({old}, f"after a {trouble.name}")
        if trial.litter():
            raise Problem(f"litter is left: {trial.litter()}")
        trial.save(job)
        for rank, files in before.items():
            require_as_before(job, rank, files)
        tally.found[trouble.name] += 1
    descendants.await_none()
    for path in trial.directory.iterdir():
        path.unlink()  # the small disk needs the space


def _require_cause(reply: Reply, cause: str, tally: Tally) -> None:
    if reply.ok or not reply.is_cairns or cause not in reply.text:
        raise Problem(f"a rank reports {reply.kind or 'success'}, not '{cause}': {reply.text}")
    tally.errors[reply.kind] += 1


@dataclass(frozen=True)
class Hang:
    """A stop of a rank's trainer or writer.

    The trainer kills a stopped writer; a stopped trainer is continued later.
    """

    whom: str  # "trainer" or "writer"
    ranks: int
    victim: int
    moment: AtSight | Strike
    how: AsyncSave

    def __str__(self) -> str:
        moment = "while it stages" if isinstance(self.moment, Strike) and self.whom == "trainer" else self.moment
        return f"{self.whom} of rank {self.victim} of {self.ranks} stopped {moment}, {self.how}"


def _draw(chance: random.Random, number: int) -> Hang:
    later, asks = chance.random() < 0.3, chance.random() < 0.6
    if number % 3 == 0:
        # The process group would notice a rank that stops before its planning. The first hang of a run stops at once:
        # every run contains a stop before the bytes are staged.
        planned = Strike(0, True, signal.SIGSTOP, chance.uniform(0, 0.001) if number else 0.0)
        return Hang("trainer", 2, chance.randrange(2), planned, AsyncSave(True, later, True, _DEADLINE_SECONDS))
    ranks = chance.choice([1, 2])
    moment: AtSight | Strike = Strike(AT_RETURN, True, signal.SIGSTOP, 0.0, "writer")
    if chance.random() < 0.7:
        moment = AtSight(chance.choice(list(SIGNS)), chance.uniform(0, 0.001))
    return Hang("writer", ranks, chance.randrange(ranks), moment, AsyncSave(True, later, asks, _DEADLINE_SECONDS))


def hangs(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Stops a writer, or a trainer that stages, for longer than the deadline of its saves."""
    trial = Trial(folder / "checkpoint")
    for index in tally.further(indices):
        hang = _draw(random.Random(f"{seed} {index}"), index)
        tally.tried += 1
        try:
            _carry_out(hang, trial, tally)
        except Exception as error:
            raise Problem(f"hang {index} of seed {seed}: {hang}: {error}") from error


def _was_planning(hang: Hang, replies: list[Reply]) -> bool:
    """Whether the ranks were still planning anew when the trainer stopped.

    The trainer stops shortly after the first collective. If the ranks were planning, their process group timed out
    first and is unusable.
    """
    return hang.whom == "trainer" and any(
        "the process group failed" in reply.text and len(reply.calls) > len(REUSE_CALLS) for reply in replies
    )


def _carry_out(hang: Hang, trial: Trial, tally: Tally) -> None:
    with Job(hang.ranks, TIMEOUT_SECONDS, hang.how) as job:
        trial.save(job)
        trial.save(job)
        old, new = trial.in_place, trial.next_step()
        strikes = {hang.victim: hang.moment} if isinstance(hang.moment, Strike) else None
        job.start("save", trial.directory, new, strikes)
        if isinstance(hang.moment, AtSight):
            hang.moment.wait(job, trial.directory)
            job.signal(hang.victim, signal.SIGSTOP, "writer")
        stopped_at = time.monotonic()
        replies = [reply for rank in job.ranks if rank != hang.victim and (reply := job.await_reply(rank))]
        if hang.whom == "trainer":
            tally.found["the other rank says who"] += any(f"rank {hang.victim}" in reply.text for reply in replies)
            job.signal(hang.victim, signal.SIGCONT)
        replies += [reply for reply in [job.await_reply(hang.victim)] if reply]
        if len(replies) < hang.ranks:
            raise Problem("a rank that nobody killed is gone")
        for reply in replies:
            if not reply.ok:
                tally.error(reply.kind, max(reply.ended - stopped_at, 0))
                if not reply.is_cairns:
                    raise Problem(f"{reply.kind} is no error of Cairn's: {reply.text}")
        acknowledged = any(reply.ok for reply in replies)
        which = trial.look({new} if acknowledged else {old, new}, f"after the hang, acknowledged: {acknowledged}")
        tally.found["new" if which == new else "old"] += 1
        tally.found["with an acknowledged save"] += acknowledged
        for rank in job.ranks:  # a writer may have been stopped without remaining work
            job.signal(rank, signal.SIGCONT, "writer")
        if not (was_planning := _was_planning(hang, replies)):
            trial.save(job)
    if was_planning:
        tally.found["while the ranks planned"] += 1
        with Job(hang.ranks, TIMEOUT_SECONDS, hang.how) as job:
            trial.save(job)
    descendants.await_none()
