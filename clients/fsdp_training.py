"""The net of `training`, sharded by FSDP2 over all ranks, for clients that expect a sharded model."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from training import loss_of, make_net, make_optimizer


def join_ranks() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo")


class Training:
    """A net and its optimizer, both sharded."""

    def __init__(self, seed: int) -> None:
        self.net = make_net(seed)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (self.net.hidden, self.net):
            fully_shard(part, mesh=mesh)
        self.optimizer = make_optimizer(self.net)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss_of(self.net, dist.get_rank()).backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """Returns copies of this rank's part of the net and the optimizer."""
        return local_copies(
            {"model": self.net.state_dict(), "optimizer": get_optimizer_state_dict(self.net, self.optimizer)}
        )


def local_copies(state: Any) -> Any:
    """Returns `state` with sorted mappings, and with each tensor as a copy of this rank's part."""
    if isinstance(state, DTensor):
        return state.to_local().detach().clone()
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: local_copies(state[key]) for key in sorted(state)}
    return [local_copies(entry) for entry in state] if isinstance(state, list) else state
