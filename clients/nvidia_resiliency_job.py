"""NVIDIA's resiliency extension, asynchronous saves by a forked and by a persistent process; see `trial`.

The extension saves rows; ``torch.distributed.checkpoint.load`` loads columns. The extension writes by its own code:
only loads are expected to reach the engine.
"""

import functools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import trial
import without_cuda  # noqa: F401 - before the client
from fsdp_training import join_ranks
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import CheckpointMetadataCache
from nvrx_saves import save_by
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

ROWS, COLUMNS = 6, 8


class NvrxJob:
    """A state that changes as if trained; each rank has the whole state."""

    def __init__(self, queues: dict[str, AsyncCallsQueue], seed: int) -> None:
        self._queues = queues
        self._matrix = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + 1000 * seed
        self._vector = torch.full((3,), float(seed))
        self._step = 0

    def train(self, steps: int) -> None:
        self._matrix += steps
        self._vector *= 1 + steps
        self._step += steps

    def _sharded(self, axis: int) -> dict[str, Any]:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        matrix = distribute_tensor(self._matrix, mesh, [Shard(axis)])
        return {"matrix": matrix, "vector": self._vector.clone(), "step": self._step}

    def save(self, path: Path) -> None:
        for way, queue in self._queues.items():
            save_by(queue, CheckpointMetadataCache(), self._sharded(0), path / way)

    def load(self, path: Path) -> None:
        states = []
        for way in self._queues:
            target = self._sharded(1)
            dcp.load(target, checkpoint_id=path / way)
            matrix: DTensor = target["matrix"]
            self._matrix, self._vector, self._step = matrix.full_tensor(), target["vector"], target["step"]
            states.append(self.state())
        trial.assert_same(states[1], states[0], "saved in another way")

    def state(self) -> dict[str, Any]:
        return {"matrix": self._matrix.clone(), "vector": self._vector.clone(), "step": self._step}


def main() -> None:
    join_ranks()
    persistent = AsyncCallsQueue(persistent=True)
    queues = {"fork": AsyncCallsQueue(persistent=False), "persistent": persistent}
    end_workers = functools.partial(trial.end_workers, persistent)
    trial.run("nvidia-resiliency-ext", lambda seed: NvrxJob(queues, seed), native_saves=False, at_end=end_workers)


if __name__ == "__main__":
    main()
