"""A small model with deterministic training: the state that a client saves and resumes."""

import copy
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict


class Net(torch.nn.Module):
    """Two and three ranks get unequal shares of the rows; the last of three ranks gets no row of `out`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 6)
        self.hidden = torch.nn.Linear(6, 7)
        self.out = torch.nn.Linear(7, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.out(torch.tanh(self.hidden(self.embedding(tokens))))


def make_net(seed: int) -> Net:
    """Returns a net with weights that depend on the seed alone, not on the rank."""
    torch.manual_seed(seed)
    return Net()


def make_optimizer(net: torch.nn.Module) -> torch.optim.Optimizer:
    """Returns AdamW: its state has moments, a step as a tensor, and numbers in the parameter groups."""
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def loss_of(net: torch.nn.Module, rank: int) -> torch.Tensor:
    """Returns the loss of a batch.

    The rank and the number of past steps alone determine the batch: a resumed run gets equal batches.
    """
    chance = torch.Generator().manual_seed(1000 * rank + int(net.seen))
    tokens = torch.randint(0, 11, (4, 3), generator=chance)
    return net(tokens).square().mean()


def full_state(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns a copy of the whole model and optimizer on rank 0, gathered without Cairn.

    All ranks but 0 get empty states.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = {
        "model": get_model_state_dict(net, options=options),
        "optimizer": get_optimizer_state_dict(net, optimizer, options=options),
    }
    return copy.deepcopy(state)  # unsharded tensors still alias the training's tensors
