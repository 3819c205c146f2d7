"""A save of a process alone that holds only parts of tensors warns; a declared save of one rank does not."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Gang
from sharded_states import shard_of_rank
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import cairn


class OwnPlanner(DefaultSavePlanner):
    """With an override, so that torch's driver saves."""

    def resolve_data(self, write_item: Any) -> Any:
        return super().resolve_data(write_item)


def run_half_saves(directory: Path) -> None:
    state = {"w": shard_of_rank(torch.arange(8.0)), "step": 3}
    mine = directory / str(dist.get_rank())
    for planner in (None, OwnPlanner()):
        with pytest.warns(RuntimeWarning, match="only parts of tensors.*'w'"):
            cairn.save(state, checkpoint_id=mine, planner=planner, no_dist=True)


def test_half_a_tensor_saved_alone_warns(two: Gang, tmp_path: Path) -> None:
    two.run(run_half_saves, tmp_path)


def run_declared_saves(directory: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        cairn.save({"w": shard_of_rank(torch.arange(8.0))}, checkpoint_id=directory, use_collectives=False)
        for planner in (None, OwnPlanner()):
            cairn.save({"w": shard_of_rank(torch.arange(8.0))}, checkpoint_id=directory / "together", planner=planner)


def test_declared_and_joint_saves_do_not_warn(two: Gang, checkpoint: Path) -> None:
    two.run(run_declared_saves, checkpoint)
