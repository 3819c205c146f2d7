"""Jobs that cross in a directory: two jobs save at once, and a job loads while a second overwrites."""

import random
from pathlib import Path

from job import Job, Reply, require_success
from kills import RANKS
from tally import Problem, Tally
from trial import Trial


def savers(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Two jobs save into a directory at once.

    Either one job wins, whole, and the losing job gets an error, or the saves follow each other. Both ranks of a
    job get equal outcomes.
    """
    for index in tally.further(indices):
        chance = random.Random(f"{seed} {index}")
        trial = Trial(folder / f"checkpoint-{index}", exists=chance.random() < 0.5)
        tally.tried += 1
        try:
            _save_at_once(trial, tally, chance)
        except Exception as error:
            raise Problem(f"round {index} of seed {seed}: {error}") from error


def _save_at_once(trial: Trial, tally: Tally, chance: random.Random) -> None:
    with Job(RANKS) as one, Job(RANKS) as other:
        if chance.random() < 0.7:
            trial.save(one)  # a first save into a directory differs from an overwrite
        winners: set[int | None] = set()
        jobs = [one, other] if chance.random() < 0.5 else [other, one]
        for job in jobs:
            job.start("save", trial.directory, trial.next_step())
        for job, step in zip(jobs, (trial.step - 1, trial.step), strict=True):
            replies = job.await_all()
            if len({reply.ok for reply in replies}) > 1:
                raise Problem(f"the ranks of one job hear different things: {_said(replies)}")
            if replies[0].ok:
                winners.add(step)
            elif not all(reply.is_cairns for reply in replies):
                raise Problem(f"not an error of Cairn: {_said(replies)}")
            else:
                tally.errors[replies[0].kind] += 1
        if not winners:
            raise Problem("neither job has saved")
        trial.look(winners, "after two jobs have saved at once")
        tally.found["one wins" if len(winners) == 1 else "one after the other"] += 1
        trial.save(jobs[0])


def _said(replies: list[Reply]) -> list[str]:
    return [f"{reply.kind}: {reply.text}" if reply.kind else "saved" for reply in replies]


def loaders(folder: Path, tally: Tally, saves: int) -> None:
    """Two ranks load while a second job overwrites: every load returns a whole step, equal on both ranks."""
    trial = Trial(folder / "checkpoint")
    with Job(RANKS) as saver, Job(RANKS) as loader:
        trial.save(saver)
        last = trial.step + saves
        saver.start("save", trial.directory, trial.next_step())
        loader.start("load", trial.directory)
        while trial.step < last or not all(map(loader.has_news, range(RANKS))):
            if trial.step >= last and trial.step < 10 * saves and not tally.has_met_all():
                last = trial.step + saves
            if all(map(loader.has_news, range(RANKS))):
                _judge_load(loader.await_all(), trial.step, tally)
                loader.start("load", trial.directory)
            if all(map(saver.has_news, range(RANKS))):
                require_success(saver.await_all(), "a save while others load")
                saver.start("save", trial.directory, trial.next_step())
        _judge_load(loader.await_all(), trial.step, tally)
        require_success(saver.await_all(), "a save while others load")
        trial.save(saver)


def _judge_load(replies: list[Reply], newest: int, tally: Tally) -> None:
    tally.tried += 1
    require_success(replies, "a load while others save")
    steps = {reply.step for reply in replies}
    if len(steps) > 1:
        raise Problem(f"two ranks of one load got steps {sorted(steps)}")
    age = newest - steps.pop()
    tally.found["of the newest step" if age == 0 else f"{age} behind"] += 1
