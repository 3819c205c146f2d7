"""Megatron-core's ``dist_checkpointing`` with its saves and its loads on Cairn's engine, by one line; run by torchrun.

Two ranks save by rows (synchronously, by a queue that forks and by a persistent queue) and load by columns; they save
three times with kept plans, and once more after a restart. Then Cairn is uninstalled: stock Megatron loads, and saves a
checkpoint for Cairn. With the argument ``resharded``, one rank loads the columns that two ranks saved.
"""

import importlib.metadata
import io
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import without_cuda  # noqa: F401 - before Megatron
from engine_notes import leave, note, start

import cairn
import cairn.nvrx

before = "before" in sys.argv
if before:
    cairn.nvrx.install()

from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core.dist_checkpointing.strategies import async_utils  # noqa: E402
from megatron.core.dist_checkpointing.strategies import torch as torch_strategies  # noqa: E402
from megatron.core.dist_checkpointing.strategies.checkpointable import CheckpointableShardedTensor  # noqa: E402
from megatron_saves import save_by, sharded  # noqa: E402

if not before:
    cairn.nvrx.install()

ROWS, COLUMNS = 6, 8
SAVING_RANKS = 2
COMMON = {"iteration": 7, "args": {"lr": 0.5, "name": "first"}}


def whole(mode: int) -> torch.Tensor:
    return torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + 100 * mode


def state(mode: int) -> dict[str, Any]:
    return {**sharded(whole(mode), 0, torch.full((3,), float(mode)), {"seed": dist.get_rank() + mode}), **COMMON}


def load(directory: Path, mode: int) -> None:
    """Loads by columns. Fails if a bit differs."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    target = sharded(torch.zeros(ROWS, COLUMNS), 1, torch.zeros(3), None)
    mine = range(rank, SAVING_RANKS, ranks)
    target["rng"] = [dist_checkpointing.ShardedObject("rng", None, (SAVING_RANKS,), (number,)) for number in mine]
    loaded = dist_checkpointing.load(target, str(directory))
    assert torch.equal(loaded["model"]["w"], whole(mode).chunk(ranks, 1)[rank]), loaded
    assert torch.equal(loaded["model"]["b"], torch.full((3,), float(mode))), loaded
    assert loaded["rng"] == [{"seed": number + mode} for number in mine], loaded
    assert {key: loaded[key] for key in COMMON} == COMMON, loaded


def save_with_kept_plans(folder: Path, queue: Any) -> None:
    """Saves 1 to 3 keep their plans; save 4 begins with the loaded metadata alone."""

    def save(strategy: Any, step: int) -> tuple[bool, bool]:
        directory = folder / f"kept-{step}"
        if dist.get_rank() == 0:
            directory.mkdir()
        dist.barrier()
        queue.schedule_async_request(
            dist_checkpointing.save(state(step), str(directory), strategy, async_sharded_save=True)
        )
        queue.maybe_finalize_async_calls(blocking=True)
        return strategy.validated_cache_reuse, strategy.validated_loaded_metadata_reuse

    strategy = torch_strategies.TorchDistSaveShardedStrategy("torch_dist", 1, cached_metadata=True)
    flags = [save(strategy, step) for step in (1, 2, 3)]
    assert flags == [(False, False), (True, False), (True, False)], flags
    loading = torch_strategies.TorchDistLoadShardedStrategy()
    target = sharded(torch.zeros(ROWS, COLUMNS), 1, torch.zeros(3), None)
    dist_checkpointing.load(target, str(folder / "kept-3"), loading)
    resumed = torch_strategies.TorchDistSaveShardedStrategy("torch_dist", 1, cached_metadata=True)
    resumed.cached_global_metadata = loading.cached_global_metadata
    assert save(resumed, 4) == (False, True)
    for step in (1, 2, 3, 4):
        load(folder / f"kept-{step}", step)


def save_with_megatrons_planner(directory: Path) -> None:
    """``cairn.save`` plans for Megatron's planner natively, and writes values raw."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = dist_checkpointing.ShardedTensor.from_rank_offsets("w", whole(1).chunk(ranks)[rank], (0, rank, ranks))
    value = io.BytesIO()
    torch.save(["of", rank], value)
    content = {"w": CheckpointableShardedTensor.from_sh_ten(part), f"value{rank}": value}
    planner = torch_strategies.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
    cairn.save(content, checkpoint_id=directory, planner=planner)
    checkpoint = cairn.open(directory)
    assert checkpoint["value1"] == ["of", 1], checkpoint["value1"]
    assert torch.equal(torch.as_tensor(checkpoint["w"]), whole(1))


def main() -> None:
    folder = Path(sys.argv[1])
    start()
    if "resharded" in sys.argv:
        for mode, name in enumerate(("sync", "fork", "persistent"), 1):
            load(folder / name, mode)
        leave()
    assert importlib.metadata.version("nvidia-resiliency-ext") == "0.6.0"
    persistent = async_utils.AsyncCallsQueue(persistent=True)
    queues = {"sync": None, "fork": async_utils.AsyncCallsQueue(persistent=False), "persistent": persistent}
    for mode, (name, queue) in enumerate(queues.items(), 1):
        save_by(queue, state(mode), folder / name)
        load(folder / name, mode)
        note(folder, name)
    save_with_kept_plans(folder, persistent)
    persistent.close()
    assert not multiprocessing.active_children()  # the saves needed no Python process
    note(folder, "kept")
    save_with_megatrons_planner(folder / "planner")
    note(folder, "planner")
    cairn.nvrx.uninstall()
    load(folder / "sync", 1)
    load(folder / "persistent", 3)
    save_by(None, state(4), folder / "stock")
    note(folder, "without")
    cairn.nvrx.install()
    load(folder / "stock", 4)
    note(folder, "switched")
    for child in multiprocessing.active_children():  # of stock Megatron
        child.terminate()
    leave()


if __name__ == "__main__":
    main()
