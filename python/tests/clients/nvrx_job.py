"""NVIDIA's resiliency extension, asynchronous saves in three steps, switched to Cairn by one line; run by torchrun.

A forked and a persistent process each save three times with the extension's cache of plans and metadata.
``torch.distributed.checkpoint.load`` loads by columns the checkpoints saved by rows.
"""

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import without_cuda  # noqa: F401 - before the client
from engine_notes import leave, note, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cairn

cairn.install()

from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue  # noqa: E402
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import CheckpointMetadataCache  # noqa: E402
from nvrx_saves import save_by  # noqa: E402

ROWS, COLUMNS = 6, 8
STEPS = 3


def whole(step: int) -> torch.Tensor:
    return torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + 100 * step


def state(step: int, axis: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"w": distribute_tensor(whole(step), mesh, [Shard(axis)]), "b": torch.full((3,), float(step)), "step": step}


def load(directory: Path, step: int) -> None:
    """Loads by columns. Fails if a bit differs."""
    target = state(0, 1)
    dcp.load(target, checkpoint_id=directory)
    assert torch.equal(target["w"].to_local(), state(step, 1)["w"].to_local()), target
    assert torch.equal(target["b"], torch.full((3,), float(step))), target
    assert target["step"] == step, target


def main() -> None:
    folder = Path(sys.argv[1])
    start()
    queues = {"fork": AsyncCallsQueue(persistent=False), "persistent": AsyncCallsQueue(persistent=True)}
    for name, queue in queues.items():
        cache = CheckpointMetadataCache()
        for step in range(1, STEPS + 1):
            save_by(queue, cache, state(step, 0), folder / f"{name}-{step}")
            load(folder / f"{name}-{step}", step)
        note(folder, name)
    queues["persistent"].close()
    for child in multiprocessing.active_children():
        child.terminate()
    leave()


if __name__ == "__main__":
    main()
