"""Megatron-core's ``dist_checkpointing``: each of its three ways to save, in turn; see `trial`.

The state holds a sharded tensor, a tensor replicated on all ranks, an object of each rank, and Megatron's common state.
Megatron saves rows and loads columns. Megatron writes by its own code: only its loads are expected to reach the engine.
"""

import functools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import trial
import without_cuda  # noqa: F401 - before Megatron
from fsdp_training import join_ranks
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron_saves import save_by, sharded

ROWS, COLUMNS = 6, 8


class MegatronJob:
    """A state that changes as if trained; each rank has the whole state."""

    def __init__(self, queues: dict[str, AsyncCallsQueue | None], seed: int) -> None:
        self._queues = queues
        self._matrix = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + 1000 * seed
        self._vector = torch.full((3,), float(seed))
        self._own = {"seed": dist.get_rank() + 10 * seed}
        self._common = {"iteration": 0, "args": {"lr": 0.5, "name": "first"}}

    def train(self, steps: int) -> None:
        self._matrix += steps
        self._vector *= 1 + steps
        self._own["seed"] += steps
        self._common["iteration"] += steps

    def save(self, path: Path) -> None:
        for way, queue in self._queues.items():
            save_by(queue, {**sharded(self._matrix, 0, self._vector, self._own), **self._common}, path / way)

    def load(self, path: Path) -> None:
        states = []
        for way in self._queues:
            target = sharded(torch.zeros(ROWS, COLUMNS), 1, torch.zeros(3), None)
            loaded = dist_checkpointing.load(target, str(path / way))
            part = loaded["model"]["w"].contiguous()
            columns = [torch.empty_like(part) for _ in range(dist.get_world_size())]
            dist.all_gather(columns, part)
            self._matrix, self._vector = torch.cat(columns, 1), loaded["model"]["b"]
            self._own, self._common = loaded["rng"], {key: loaded[key] for key in self._common}
            states.append(self.state())
        for state in states[1:]:
            trial.assert_same(state, states[0], "saved in another way")

    def state(self) -> dict[str, Any]:
        return {
            "matrix": self._matrix.clone(),
            "vector": self._vector.clone(),
            "own": dict(self._own),
            "common": dict(self._common),
        }


def main() -> None:
    join_ranks()
    persistent = AsyncCallsQueue(persistent=True)
    queues = {"sync": None, "fork": AsyncCallsQueue(persistent=False), "persistent": persistent}
    end_workers = functools.partial(trial.end_workers, persistent)
    trial.run("megatron-core", lambda seed: MegatronJob(queues, seed), native_saves=False, at_end=end_workers)


if __name__ == "__main__":
    main()
