"""States that change between saves, at random: every checkpoint holds the state of its save, whatever the plan.

A state is made of a list of entries and a seed. Between saves entries change, come, go, move to another rank, or only
get other bits: the ranks then go on with an earlier plan, or plan anew.
"""

import random
from pathlib import Path
from typing import Any, NamedTuple

import stock
import torch
import torch.distributed as dist
from ranks import gang
from same import assert_same, blank
from sharded_states import shard_of_rank
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import cairn

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)
FORMS = ("whole", "sharded", "sharded", "on rank 0", "on rank 1", "text", "nested")
WAYS = ("save", "thread", "process")


class Entry(NamedTuple):
    form: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    length: int  # of texts: their archives have several size classes

    @classmethod
    def any(cls, dice: random.Random) -> "Entry":
        shape = tuple(dice.choice((0, 1, 3, 17)) for _ in range(dice.randrange(1, 3)))
        return cls(dice.choice(FORMS), dice.choice(DTYPES), shape, dice.choice((0, 250, 300, 5000)))


class Step(NamedTuple):
    entries: dict[str, Entry]
    seed: int
    way: str
    directory: Path


def changed(entries: dict[str, Entry], dice: random.Random) -> dict[str, Entry]:
    """The entries with none, one or two changed, new or renamed."""
    result = dict(entries)
    for _ in range(dice.choice((0, 0, 1, 2))):
        key = dice.choice(list(result))
        entry = result[key]
        result[key] = dice.choice(
            (entry._replace(length=300), entry._replace(form=dice.choice(FORMS)), Entry.any(dice))
        )
        if dice.random() < 0.3:
            result[f"new{dice.randrange(100)}"] = result.pop(key)
    return result


def content(step: Step) -> dict[str, Any]:
    """What the checkpoint of the step must hold."""
    whole: dict[str, Any] = {}
    for key, entry in step.entries.items():
        generator = torch.Generator().manual_seed(step.seed)
        tensor = torch.randint(0, 100, entry.shape, generator=generator).to(entry.dtype)
        text = f"{step.seed}" + "x" * entry.length
        whole[key] = {"text": text, "nested": {"list": [tensor, text], "step": step.seed}}.get(entry.form, tensor)
    return whole


def state_of_rank(step: Step) -> dict[str, Any]:
    state = content(step)
    for key, entry in step.entries.items():
        if entry.form == "sharded":
            state[key] = shard_of_rank(state[key])
        elif entry.form == f"on rank {1 - dist.get_rank()}":
            del state[key]
    return state


def run_job(loaded: Step | None, steps: list[Step]) -> None:
    if loaded is not None:  # the first save may go on with the plan of this checkpoint
        state = state_of_rank(loaded._replace(seed=0))
        cairn.load(state, checkpoint_id=loaded.directory)
    for step in steps:
        if step.way == "save":
            cairn.save(state_of_rank(step), checkpoint_id=step.directory)
        else:
            kind = AsyncCheckpointerType.PROCESS if step.way == "process" else AsyncCheckpointerType.THREAD
            cairn.async_save(state_of_rank(step), checkpoint_id=step.directory, async_checkpointer_type=kind).result()


def test_every_checkpoint_holds_its_state(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    entries = {f"entry{number}": Entry.any(dice) for number in range(8)}
    last: Step | None = None
    for job in range(3):
        steps = []
        for number in range(6):
            if number or job == 0:
                entries = changed(entries, dice)
            directory = tmp_path / f"{job}-{number // 2}"  # each is overwritten once
            steps.append(Step(entries, 10 * job + number + 1, dice.choice(WAYS), directory))
        with gang(2) as ranks:
            ranks.run(run_job, last, steps)
        for step in steps[1::2]:
            assert cairn.verify(step.directory), (seed, step)
            expected = content(step)
            paths = stock.metadata_of(step.directory).planner_data.values()
            assert {path[0] for path in paths} == expected.keys(), (seed, step)
            found = blank(expected)
            stock.load(found, step.directory)
            for key, value in expected.items():
                assert_same(found[key], value, f"seed {seed}, step {step.seed}, {key}")
        last = steps[-1]
