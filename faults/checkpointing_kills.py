"""SIGKILL in the middle of an overwrite of a directory of torch_checkpointing: by Cairn, and by the package itself.

After each kill of a job of Cairn the directory holds the files of the old or of the new save, of all ranks, and those
of the new save if a rank was told so. The next save leaves nothing else. What the package itself loses is counted, and
is never a problem of Cairn's.
"""

import random
import signal
import time
from pathlib import Path
from typing import cast

import descendants
from checkpointing_saves import DEEDS, step_of_directory
from job import Job, require_success, typical_seconds
from orders import Whom
from tally import Problem, Tally

RANKS = 2
_LAUNCHER_SECONDS = 0.2  # after which a launcher ends the remaining ranks


def overwrites(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Kills the trainer, the writer or both of a random rank at a random moment, and soon the remaining ranks."""
    typical = _typical_seconds(folder / "measured", DEEDS["cairn"])
    for index in tally.further(indices):
        tally.tried += 1
        chance = random.Random(f"{seed} {index}")
        run = folder / f"run-{index}"
        whom = cast(Whom, chance.choice(["trainer", "writer", "both"]))
        try:
            told = _kill(run / "checkpoint", DEEDS["cairn"], chance, typical, whom, tally)
            step = step_of_directory(run / "checkpoint", RANKS)
            if step == 1 and told:
                raise Problem("a rank was told that the save succeeded, and the old checkpoint is in place")
            tally.found["old" if step == 1 else "new"] += 1
            tally.found["told"] += told
            tally.found["litter"] += len(list(run.iterdir())) > 1
            _save(run / "checkpoint", DEEDS["cairn"], 3)
            names = sorted(path.name for path in run.iterdir())
            if names != ["checkpoint"] or step_of_directory(run / "checkpoint", RANKS) != 3:
                raise Problem(f"the next save leaves {names}")
        except (Problem, OSError) as problem:
            tally.problems.append(f"{index}, {whom}: {problem}")


def overwrites_by_stock(folder: Path, tally: Tally, seed: int, indices: range) -> None:
    """Half of the overwrites delete the old directory before, as the package's error advises; half write in place."""
    for way in ("delete", "in place"):
        typical = _typical_seconds(folder / way / "measured", DEEDS[way])
        for index in indices[::2]:
            tally.tried += 1
            directory = folder / way / f"run-{index}" / "checkpoint"
            _kill(directory, DEEDS[way], random.Random(f"{seed} {way} {index}"), typical, "trainer", tally)
            tally.found[f"{way}: {_what_is_left(directory)}"] += 1


def _kill(directory: Path, deed: str, chance: random.Random, typical: float, whom: Whom, tally: Tally) -> bool:
    """Saves step 1, kills during the save of step 2, and returns when no process is left: whether a rank was told."""
    directory.parent.mkdir(parents=True)
    victim = chance.randrange(RANKS)
    told = False
    with Job(RANKS) as job:
        job.start(deed, directory, 1)
        require_success(job.await_all(), "a first save")
        job.start(deed, directory, 2)
        time.sleep(chance.uniform(0, 1.2 * typical))
        struck_at = time.monotonic()
        job.signal(victim, signal.SIGKILL, whom)
        until = struck_at + _LAUNCHER_SECONDS
        while time.monotonic() < until and not job.has_news(1 - victim):
            time.sleep(0.001)
        for rank in job.ranks:
            reply = job.await_reply(rank) if job.has_news(rank) else None
            told |= reply is not None and reply.ok
            if reply is not None and not reply.ok:
                tally.error(reply.kind, max(reply.ended - struck_at, 0))
    descendants.await_none()
    return told


def _save(directory: Path, deed: str, step: int) -> None:
    with Job(RANKS) as job:
        job.start(deed, directory, step)
        require_success(job.await_all(), "a save that nothing disturbs")
    descendants.await_none()


def _typical_seconds(directory: Path, deed: str) -> float:
    directory.parent.mkdir(parents=True, exist_ok=True)
    seconds = typical_seconds(RANKS, deed, directory)
    descendants.await_none()
    return seconds


def _what_is_left(directory: Path) -> str:
    try:
        return {1: "old", 2: "new"}[step_of_directory(directory, RANKS)]
    except OSError:
        return "lost: it can't be loaded"
    except Problem:
        return "a mixture, loaded without an error"
