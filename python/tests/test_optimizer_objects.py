"""An optimizer given as an object: a load gives a new optimizer all that the checkpoint has.

The job resumes bit for bit.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from ranks import Gang
from same import assert_same
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from wrapper_tensors import Codes

import cairn

Optimizer = torch.optim.Optimizer


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)


def two_groups(model: nn.Module) -> Optimizer:
    first, *rest = model.parameters()
    return torch.optim.Adam([{"params": rest, "lr": 0.02}, {"params": [first], "weight_decay": 0.1}], lr=0.01)


def adafactor(model: nn.Module) -> Optimizer:
    return torch.optim.Adafactor(model.parameters())


class Job:
    """A model, frozen in part, and its optimizer. A new job differs from a trained job."""

    def __init__(self, make: Callable[[nn.Module], Optimizer], seed: int) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(2, 2))
        self.model[2].requires_grad_(False)  # a parameter without a state
        self.optimizer = make(self.model)

    def shard(self, ranks: int, make: Callable[[nn.Module], Optimizer]) -> None:
        fully_shard(self.model, mesh=init_device_mesh("cpu", (ranks,)))
        self.optimizer = make(self.model)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            self.optimizer.zero_grad()
            batch = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
            self.model(batch).square().sum().backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def whole(self) -> list[Any]:
        """The model's and the optimizer's elements and values."""
        both = [self.model.state_dict(), self.optimizer.state_dict()["state"], self.optimizer.param_groups]
        tensors: list[Any] = []
        while both:
            part = both.pop()
            if isinstance(part, DTensor):
                tensors.append(part.full_tensor().detach())
            elif isinstance(part, dict):
                both += [part[key] for key in sorted(part, key=str)]
            elif isinstance(part, list):
                both += part
            else:
                tensors.append(part.detach() if isinstance(part, torch.Tensor) else part)
        return tensors


@pytest.mark.parametrize("make", [sgd, adamw, two_groups, adafactor])
def test_a_new_optimizer_resumes_bit_for_bit(make: Callable[[nn.Module], Optimizer], checkpoint: Path) -> None:
    trained, resumed = Job(make, 1), Job(make, 2)
    trained.train(0, 3)
    cairn.save(trained.state(), checkpoint_id=checkpoint)
    cairn.load(resumed.state(), checkpoint_id=checkpoint)
    assert_same(resumed.whole(), trained.whole())
    trained.train(3, 5)
    resumed.train(3, 5)
    assert_same(resumed.whole(), trained.whole())


def test_a_checkpoint_of_stock_torch_resumes_too(tmp_path: Path) -> None:
    trained, resumed = Job(adamw, 1), Job(adamw, 2)
    trained.train(0, 2)
    stock.save(trained.state(), tmp_path)
    cairn.load(resumed.state(), checkpoint_id=tmp_path)
    assert_same(resumed.whole(), trained.whole())


def test_a_state_under_the_names_of_the_parameters_finds_its_parameters(checkpoint: Path) -> None:
    trained, resumed = Job(two_groups, 1), Job(two_groups, 2)
    trained.train(0, 2)
    model, optimizer = get_state_dict(trained.model, trained.optimizer)
    cairn.save({"model": model, "optimizer": optimizer}, checkpoint_id=checkpoint)
    cairn.load(resumed.state(), checkpoint_id=checkpoint)
    resumed.train(2, 4)
    trained.train(2, 4)
    assert_same(resumed.model.state_dict(), trained.model.state_dict())


def test_names_that_a_scheduler_has_added_to_the_groups_come_back(checkpoint: Path) -> None:
    trained, resumed = Job(sgd, 1), Job(sgd, 2)
    torch.optim.lr_scheduler.StepLR(trained.optimizer, 1)
    cairn.save(trained.state(), checkpoint_id=checkpoint)
    assert "initial_lr" not in resumed.optimizer.param_groups[0]
    cairn.load(resumed.state(), checkpoint_id=checkpoint)
    assert resumed.optimizer.param_groups[0]["initial_lr"] == 0.1


def test_an_optimizer_without_saved_state_stays_without_state(checkpoint: Path) -> None:
    new, other = Job(adamw, 1), Job(adamw, 2)
    cairn.save(new.state(), checkpoint_id=checkpoint)
    cairn.load(other.state(), checkpoint_id=checkpoint)
    assert not other.optimizer.state
    assert_same(other.model.state_dict(), new.model.state_dict())


def test_a_failed_load_leaves_the_optimizer_alone(checkpoint: Path) -> None:
    trained, resumed = Job(adamw, 1), Job(adamw, 2)
    trained.train(0, 1)
    cairn.save(trained.state(), checkpoint_id=checkpoint)
    before = [tensor.clone() for tensor in resumed.model.parameters()]
    with pytest.raises(cairn.MissingKey, match="added"):
        cairn.load({**resumed.state(), "added": 1}, checkpoint_id=checkpoint)
    assert not resumed.optimizer.state
    assert_same(list(resumed.model.parameters()), before)


def test_an_optimizer_of_fewer_parameters_is_refused(checkpoint: Path) -> None:
    trained = Job(adamw, 1)
    trained.train(0, 1)
    cairn.save(trained.state(), checkpoint_id=checkpoint)
    smaller = torch.optim.AdamW(trained.model[0].parameters(), amsgrad=True)
    with pytest.raises(ValueError, match="doesn't match the size"):
        cairn.load({"optimizer": smaller}, checkpoint_id=checkpoint)


class Packing(torch.optim.Adam):
    """An optimizer outside of torch."""


def test_a_packed_state_is_not_loaded_into_tensors_of_another_class(tmp_path: Path) -> None:
    """The state is stored as 8 bits, and passes for 32 bits: as the states of torchao's AdamW8bit do."""
    model = nn.Linear(64, 64)
    optimizer = Packing(model.parameters())
    group = optimizer.state_dict()["param_groups"]
    packed = {"state": {0: {"exp_avg": Codes.of(torch.ones(64, 64))}}, "param_groups": group}
    stock.save({"optimizer": packed}, tmp_path)
    with pytest.raises(cairn.Unsupported, match="only Packing makes") as refused:
        cairn.load({"optimizer": optimizer}, checkpoint_id=tmp_path)
    assert refused.value.key == "optimizer.state.0.exp_avg"
    whole = {"state": {0: {"exp_avg": torch.ones(64, 64), "step": torch.tensor(1.0)}}, "param_groups": group}
    cairn.save({"optimizer": whole}, checkpoint_id=tmp_path)
    cairn.load({"optimizer": optimizer}, checkpoint_id=tmp_path)
    assert optimizer.state[model.weight]["exp_avg"].sum() == 4096


def resume_sharded(directory: Path, plain: Path) -> list[Any]:
    """Trains, saves and resumes as a rank of two. Returns the trained and the resumed elements."""
    ranks = torch.distributed.get_world_size()
    trained, resumed = Job(adamw, 1), Job(adamw, 2)
    trained.shard(ranks, adamw)
    resumed.shard(ranks, adamw)
    trained.train(0, 3)
    cairn.save(trained.state(), checkpoint_id=directory)
    cairn.load(resumed.state(), checkpoint_id=directory)
    moments = resumed.optimizer.state_dict()["state"][0]
    assert moments["exp_avg"].placements == next(resumed.model.parameters()).placements
    assert not isinstance(moments["step"], DTensor)
    equal = [trained.whole(), resumed.whole()]
    trained.train(3, 5)
    resumed.train(3, 5)
    equal += [trained.whole(), resumed.whole()]
    from_one = Job(adamw, 3)  # the checkpoint of a process alone
    from_one.shard(ranks, adamw)
    cairn.load(from_one.state(), checkpoint_id=plain)
    new = Job(adamw, 4)
    new.shard(ranks, adamw)
    with pytest.raises(cairn.Unsupported, match="under the name of a parameter"):
        cairn.load({"optimizer": new.optimizer}, checkpoint_id=plain.with_name("named"))
    factored = Job(adafactor, 5)
    factored.shard(ranks, adafactor)
    with pytest.raises(cairn.Unsupported, match="Make the state before the load") as refused:
        cairn.load({"optimizer": factored.optimizer}, checkpoint_id=plain.with_name("factored"))
    assert refused.value.key is not None and refused.value.key.startswith("optimizer.state.0.")
    return [*equal, from_one.whole()]


def test_the_state_of_sharded_parameters_is_sharded(two: Gang, tmp_path: Path) -> None:
    alone, factored = Job(adamw, 1), Job(adafactor, 1)
    alone.train(0, 2)
    factored.train(0, 1)
    cairn.save(alone.state(), checkpoint_id=tmp_path / "plain")
    model, optimizer = get_state_dict(alone.model, alone.optimizer)
    cairn.save({"model": model, "optimizer": optimizer}, checkpoint_id=tmp_path / "named")
    cairn.save(factored.state(), checkpoint_id=tmp_path / "factored")
    for trained, resumed, later, resumed_later, from_one in two.run(
        resume_sharded, tmp_path / "two", tmp_path / "plain"
    ):
        assert_same(resumed, trained)
        assert_same(resumed_later, later)
        assert_same(from_one, alone.whole())
    job = Job(adamw, 5)
    cairn.load(job.state(), checkpoint_id=tmp_path / "two")  # by one process
    assert len(job.optimizer.state) == 4
