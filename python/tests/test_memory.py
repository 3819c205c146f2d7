"""The memory that the engine reads and writes: tensors made on access, and tensors shared by two keys."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from same import assert_same
from torch.distributed.checkpoint import DefaultLoadPlanner

import cairn


class Lazy(Mapping[str, torch.Tensor]):
    """Makes a new tensor at each access, and keeps no tensor."""

    def __len__(self) -> int:
        return 500

    def __iter__(self) -> Iterator[str]:
        return iter([f"w{i}" for i in range(len(self))])

    def __getitem__(self, key: str) -> torch.Tensor:
        return torch.full((257,), float(key[1:]))


def test_tensors_without_further_references(checkpoint: Path) -> None:
    cairn.save({"lazy": Lazy()}, checkpoint_id=checkpoint)
    opened = cairn.open(checkpoint)
    for key, tensor in Lazy().items():
        assert (opened.read(f"lazy.{key}") == tensor.numpy()).all(), key


def test_targets_that_share_memory_are_not_mixed(checkpoint: Path) -> None:
    count = 3_000_000
    cairn.save({"a": torch.zeros(count), "b": torch.ones(count)}, checkpoint_id=checkpoint)
    for _ in range(5):
        tied = torch.full((count,), 7.0)
        state: dict[str, Any] = {"a": tied, "b": tied}
        cairn.load(state, checkpoint_id=checkpoint)
        assert tied.min() == tied.max()


def test_a_partial_load_leaves_odd_targets_alone(checkpoint: Path) -> None:
    cairn.save({"there": torch.ones(3)}, checkpoint_id=checkpoint)
    conjugate = torch.full((3,), 2 + 1j).conj()
    state: dict[str, Any] = {"there": torch.zeros(3), "missing": conjugate}
    cairn.load(state, checkpoint_id=checkpoint, planner=DefaultLoadPlanner(allow_partial_load=True))
    assert_same(state["missing"].resolve_conj(), torch.full((3,), 2 - 1j))
    assert_same(state["there"], torch.ones(3))


def test_a_path_with_a_zero_byte_is_no_other_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zero byte"):
        cairn.open(str(tmp_path) + "\0more")
    assert not list(tmp_path.iterdir())
