"""Kills during an overwrite by stock torch.distributed.checkpoint, for comparison.

A result of this module is never a problem of Cairn's.
"""

import random
import time
from pathlib import Path

from job import Job, require_success, typical_seconds
from kills import RANKS
from state import step_of, whole
from tally import Problem, Tally
from trial import load_with_torch

_SAVE = "save with torch"


def overwrites(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Kills a random rank at a random moment of an overwrite by stock torch, with the state of Cairn's kills."""
    typical = typical_seconds(RANKS, _SAVE, folder / "measured")
    for index in indices:
        tally.tried += 1
        chance = random.Random(f"{seed} {index}")
        directory = folder / f"checkpoint-{index}"
        victim = chance.randrange(RANKS)
        with Job(RANKS) as job:
            job.start(_SAVE, directory, 1)
            require_success(job.await_all(), "a first save by stock torch")
            job.start(_SAVE, directory, 2)
            time.sleep(chance.uniform(0, 1.2 * typical))
            job.kill(victim)
            struck_at = time.monotonic()
            reply = job.await_reply(1 - victim)
            if reply is not None and not reply.ok:
                tally.error(reply.kind, max(reply.ended - struck_at, 0))
        tally.found[_what_is_left(directory)] += 1


def _what_is_left(directory: Path) -> str:
    state = whole(0)
    try:
        load_with_torch(state, directory)
    except (Problem, OSError):
        return "lost: it can't be loaded"
    try:
        return {1: "old", 2: "new"}[step_of(state)]
    except Problem:
        return "a mixture, loaded without an error"
