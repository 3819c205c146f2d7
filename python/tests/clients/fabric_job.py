"""Lightning Fabric with FSDP2, switched to Cairn by one line; run by torchrun, see `scenario`."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from lightning.fabric.utilities.load import _load_distributed_checkpoint
from scenario import play
from torch.distributed.fsdp import fully_shard
from training import full_state, loss_of, make_net, make_optimizer

import cairn


def shard(net: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    for part in (net.hidden, net):
        fully_shard(part, mesh=mesh["data_parallel"])
    return net


class FabricJob:
    """A model in training."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        self._fabric = fabric
        self._net = fabric.setup_module(make_net(seed))
        self._optimizer = fabric.setup_optimizers(make_optimizer(self._net))
        self._step = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._fabric.backward(loss_of(self._net, self._fabric.global_rank))
            self._optimizer.step()
            self._step += 1

    def save(self, path: Path) -> None:
        self._fabric.save(path, {"model": self._net, "optimizer": self._optimizer, "step": self._step})

    def load(self, path: Path) -> None:
        state = {"model": self._net, "optimizer": self._optimizer, "step": 0}
        self._fabric.load(path, state)
        self._step = state["step"]

    def merge(self, path: Path, into: Path) -> dict[str, Any]:
        return (
            _load_distributed_checkpoint(path) if self._fabric.global_rank == 0 else {}
        )  # as Fabric's consolidation tool does in one process

    def state(self) -> dict[str, Any]:
        return {**full_state(self._net.module, self._optimizer.optimizer), "step": self._step}


def main() -> None:
    cairn.install()
    ranks = int(os.environ["WORLD_SIZE"])
    strategy = ModelParallelStrategy(shard, data_parallel_size=ranks, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    play(lambda seed: FabricJob(fabric, seed))


if __name__ == "__main__":
    main()
