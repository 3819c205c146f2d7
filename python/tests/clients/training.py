"""A small model, and a training that goes the same way each time: what a client saves and resumes."""

import copy
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict


class Net(torch.nn.Module):
    """Of its rows two and three ranks get different shares, and the last of three gets none of `out`."""

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
    """Other weights for each seed, the same on every rank."""
    torch.manual_seed(seed)
    return Net()


def make_optimizer(net: torch.nn.Module) -> torch.optim.Optimizer:
    """With moments, a step that is a tensor, and a value in its groups."""
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def loss_of(net: torch.nn.Module, rank: int) -> torch.Tensor:
    """Of a batch that only the rank and the steps behind the net decide: a resumed run gets the same ones."""
    chance = torch.Generator().manual_seed(1000 * rank + int(net.seen))
    tokens = torch.randint(0, 11, (4, 3), generator=chance)
    return net(tokens).square().mean()


def full_state(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """All of the model and its optimizer as a copy on rank 0, gathered without Cairn; the other ranks get nothing."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = {
        "model": get_model_state_dict(net, options=options),
        "optimizer": get_optimizer_state_dict(net, optimizer, options=options),
    }
    return copy.deepcopy(state)  # what is not sharded is still the training's own
