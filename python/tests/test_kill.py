"""SIGKILL at each place of an overwrite: the old or the new state, bit by bit; the next save removes leftovers.

`./dev faults` kills at random moments (faults/moments.py).
"""

import functools
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from kills import Killer, assert_each_is_hit
from same import assert_same

import cairn

OTHERS = {"common.pt": b"of the trainer", "meta.pt": b"of the framework"}


def state_of(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"layer{i}": torch.rand(96, 1024, generator=generator) for i in range(16)}
    return {"model": tensors, "step": seed, "betas": [0.9, 0.1 * seed]}


OLD, NEW = state_of(1), state_of(2)


def overwrite(directory: Path) -> None:
    cairn.save(NEW, checkpoint_id=directory)


def loaded(directory: Path, load: Any) -> dict[str, Any]:
    tensors = {name: torch.zeros(96, 1024) for name in OLD["model"]}
    state: dict[str, Any] = {"model": tensors, "step": 0, "betas": None}
    load(state, directory)
    return state


def load_with_cairn(state: dict[str, Any], directory: Path) -> None:
    cairn.load(state, checkpoint_id=directory)


def clean(directory: Path) -> bool:
    """Whether the directory holds only its checkpoint and the files of others."""
    return {path.name for path in directory.iterdir()} == {".metadata", *cairn.open(directory).files, *OTHERS}


# The steps at the top of src/commit/save_transaction.cc.
COMMIT = r"renameat2? \.cairn-ID/metadata -> \.metadata"
STEPS = {
    "claim": r"mkdirat \.cairn-ID",
    "claim, with the lease": r".* -> \.cairn-ID/lease",
    "write, the first bytes": r"fallocate \.cairn-ID/__0_ID\.distcp\npwrite \.cairn-ID/__0_ID\.distcp",
    "write, further bytes": r"pwrite \.cairn-ID/__0_ID\.distcp\npwrite \.cairn-ID/__0_ID\.distcp",
    "write, synced": r"fsync \.cairn-ID/__0_ID\.distcp",
    "publish": r"renameat2 \.cairn-ID/__0_ID\.distcp -> __0_ID\.distcp",
    "publish, synced": r"renameat2 .* -> __0_ID\.distcp\nfsync \.",
    "seal": r".* -> \.cairn-ID/metadata",
    "seal, synced": r"fsync \.cairn-ID\nfsync \.",
    "commit, with the list of the orphans": r".* -> \.cairn-ID/replaced",
    "commit": COMMIT,
    "commit, synced": rf"{COMMIT}\nfsync \.",
    "clean": r"fsync \.\nunlinkat __0_ID\.distcp",
    "clean, the folder": r"unlinkat \.cairn-ID",
}


@pytest.mark.slow
def test_kills_at_each_place_of_an_overwrite(checkpoint: Path, killer: Killer) -> None:
    cairn.save(OLD, checkpoint_id=checkpoint)
    for name, data in OTHERS.items():
        (checkpoint / name).write_bytes(data)
    runs = []
    for run in killer.kill_before_each_call(functools.partial(overwrite, checkpoint), checkpoint):
        where = f"killed: {run.is_killed}, {run.calls[-2:]}"
        runs.append(run)
        state = loaded(checkpoint, load_with_cairn)
        assert_same(state, NEW if run.has_made(COMMIT) else OLD, where)
        assert_same(loaded(checkpoint, stock.load), state, where)
        assert (not clean(checkpoint)) == (run.is_killed and len(run.calls) > 1), where

        cairn.save(OLD, checkpoint_id=checkpoint)
        assert clean(checkpoint), where
    assert_each_is_hit(STEPS, runs)
    assert cairn.verify(checkpoint)
    assert {name: (checkpoint / name).read_bytes() for name in OTHERS} == OTHERS
