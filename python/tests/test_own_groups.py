"""Process groups that Cairn makes for asynchronous saves with a planner, a storage or a stager of the caller's."""

import gc
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import Gang
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import cairn
from cairn._async import pending_saves


def open_groups_and_save(directory: Path) -> tuple[list[int], list[int]]:
    """Saves on one group after another, by a planner of the caller's. Returns how many groups and threads are left."""
    if dist.get_rank() == 0:  # the ranks have different numbers of groups
        world: Any = dist.distributed_c10d._world
        made = world.group_count
        dist.new_group([0], backend="gloo", use_local_synchronization=True)
        # Since torch 2.15 the group counts, on this rank alone, in the names of the groups below: torch would hang.
        world.group_count = made
    before = len(dist.distributed_c10d._world.pg_map)
    groups, threads = [], []
    for step in range(3):
        group = dist.new_group([0, 1], backend="gloo")
        state, planner = {"t": torch.full((3,), step)}, PlannerOfTheCaller()
        save: Any = cairn.async_save(state, checkpoint_id=directory, planner=planner, process_group=group)
        save.result()
        pending_saves.wait_for()
        dist.barrier()
        dist.destroy_process_group(group)
        del group, planner, save
        gc.collect()
        groups.append(len(dist.distributed_c10d._world.pg_map) - before)
        threads.append(len(list(Path("/proc/self/task").iterdir())))
    return groups, threads


class PlannerOfTheCaller(DefaultSavePlanner):
    """The engine does not know this planner: torch's code saves, on a process group of Cairn's own."""

    def resolve_data(self, write_item: Any) -> Any:
        return super().resolve_data(write_item)


def test_the_group_for_a_callers_group_is_released_with_the_callers_group(two: Gang, checkpoint: Path) -> None:
    for groups, threads in two.run(open_groups_and_save, checkpoint):
        assert groups == [0, 0, 0]
        assert threads[2] <= threads[0]
