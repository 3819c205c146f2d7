"""SIGKILL at random moments of an overwrite: the old or the new state, bit by bit; the next save removes leftovers."""

from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from kills import duration_of, kill_at_moments
from same import assert_same

import cairn

KILLS = 100
SEED = 20
OTHERS = {"common.pt": b"of the trainer", "meta.pt": b"of the framework"}


def state_of(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"layer{i}": torch.rand(32, 1024, generator=generator) for i in range(16)}
    return {"model": tensors, "step": seed, "betas": [0.9, 0.1 * seed]}


OLD, NEW = state_of(1), state_of(2)


def overwrite(directory: Path) -> None:
    cairn.save(NEW, checkpoint_id=directory)


def loaded(directory: Path, load: Any) -> dict[str, Any]:
    tensors = {name: torch.zeros(32, 1024) for name in OLD["model"]}
    state: dict[str, Any] = {"model": tensors, "step": 0, "betas": None}
    load(state, directory)
    return state


def load_with_cairn(state: dict[str, Any], directory: Path) -> None:
    cairn.load(state, checkpoint_id=directory)


@pytest.mark.slow
def test_kills_during_an_overwrite(checkpoint: Path) -> None:
    cairn.save(OLD, checkpoint_id=checkpoint)
    for name, data in OTHERS.items():
        (checkpoint / name).write_bytes(data)
    duration = duration_of(lambda: overwrite(checkpoint))
    cairn.save(OLD, checkpoint_id=checkpoint)
    seen = {"old": 0, "new": 0, "left behind": 0}
    for kill in kill_at_moments(lambda: overwrite(checkpoint), duration, KILLS, SEED):
        state = loaded(checkpoint, load_with_cairn)
        which = "new" if state["step"] == 2 else "old"
        seen[which] += 1
        where = f"kill {kill}, seed {SEED}"
        assert_same(state, NEW if which == "new" else OLD, where)
        assert_same(loaded(checkpoint, stock.load), state, where)
        expected = {".metadata", *cairn.open(checkpoint).files, *OTHERS}
        seen["left behind"] += {path.name for path in checkpoint.iterdir()} != expected

        cairn.save(OLD, checkpoint_id=checkpoint)
        files = {path.name for path in checkpoint.iterdir()}
        assert files == {".metadata", *cairn.open(checkpoint).files, *OTHERS}, where
    assert cairn.verify(checkpoint)
    assert {name: (checkpoint / name).read_bytes() for name in OTHERS} == OTHERS
    print(seen)
    assert min(seen.values()) > 0, f"all kills hit the same part of a save: {seen}"
