"""load_model: a model on the meta device gets memory and values from a checkpoint."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Gang
from same import assert_same
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import cairn


class Model(nn.Module):
    """A model with tied parameters, a persistent buffer, and a buffer that no state dict has."""

    inverse: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("inverse", torch.empty(3), persistent=False)
        self.compute()

    def compute(self) -> None:
        self.inverse.copy_(1.0 / torch.arange(1, 4))


def init_buffers(module: nn.Module) -> None:
    assert isinstance(module, Model)
    module.compute()


def on_meta() -> Model:
    with torch.device("meta"):
        return Model()


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Model]:
    torch.manual_seed(1)
    model = Model()
    cairn.save({"model": model, "step": 3}, checkpoint_id=tmp_path / "saved")
    return tmp_path / "saved", model


def test_a_meta_model_gets_values(saved: tuple[Path, Model]) -> None:
    directory, model = saved
    loaded = on_meta()
    assert cairn.load_model(loaded, directory, key="model", device="cpu", init_buffers=init_buffers) is None
    assert_same(loaded.state_dict(), model.state_dict())
    assert_same(loaded.inverse, model.inverse)
    assert loaded.head.weight is loaded.embedding.weight
    assert isinstance(loaded.head.weight, nn.Parameter)
    assert [it.requires_grad for it in loaded.parameters()] == [it.requires_grad for it in model.parameters()]


def test_buffers_that_are_not_persistent_need_a_function(saved: tuple[Path, Model]) -> None:
    loaded = on_meta()
    with pytest.raises(cairn.InvalidArgument, match="inverse") as raised:
        cairn.load_model(loaded, saved[0], key="model")
    assert raised.value.key == "inverse"
    assert all(parameter.is_meta for parameter in loaded.parameters())


def test_tensors_with_memory_are_filled_in_place(saved: tuple[Path, Model]) -> None:
    directory, model = saved
    loaded = Model()
    before = {name: parameter.data_ptr() for name, parameter in loaded.named_parameters()}
    kept = dict(loaded.named_parameters())
    cairn.load_model(loaded, directory, key="model")
    assert_same(loaded.state_dict(), model.state_dict())
    assert {name: parameter.data_ptr() for name, parameter in loaded.named_parameters()} == before
    assert all(parameter is kept[name] for name, parameter in loaded.named_parameters())


@pytest.mark.parametrize("lacks", ["head.weight", "embedding.weight"])
def test_a_shared_parameter_needs_one_of_its_keys(tmp_path: Path, lacks: str) -> None:
    model = Model()
    state = model.state_dict()
    del state[lacks]
    cairn.save(state, checkpoint_id=tmp_path)
    loaded = on_meta()
    cairn.load_model(loaded, tmp_path, init_buffers=init_buffers)
    assert_same(loaded.state_dict(), model.state_dict())
    assert loaded.head.weight is loaded.embedding.weight


def test_without_strict_a_missing_parameter_stays_on_the_meta_device(saved: tuple[Path, Model]) -> None:
    directory, model = saved
    with torch.device("meta"):
        loaded = nn.ModuleDict({"norm": nn.BatchNorm1d(4), "new": nn.Linear(2, 2)})
    with pytest.raises(cairn.MissingKey):
        cairn.load_model(loaded, directory, key="model")
    found = cairn.load_model(loaded, directory, key="model", strict=False)
    assert found is not None
    assert found.missing == ["model.new.weight", "model.new.bias"]
    assert "step" in found.unexpected
    assert loaded["new"].weight.is_meta
    assert_same(loaded["norm"].state_dict(), model.norm.state_dict())


def test_frozen_parameters_of_a_meta_model_come_from_the_base(tmp_path: Path) -> None:
    base, delta = nn.Linear(3, 3), nn.Linear(3, 3)
    cairn.save({"bottom": base}, checkpoint_id=tmp_path / "base")
    cairn.save({"top": delta}, checkpoint_id=tmp_path / "delta")
    with torch.device("meta"):
        loaded = nn.ModuleDict({"bottom": nn.Linear(3, 3), "top": nn.Linear(3, 3)})
    cairn.load_model(loaded, tmp_path / "delta", base=tmp_path / "base")
    assert_same(loaded["bottom"].state_dict(), base.state_dict())
    assert_same(loaded["top"].state_dict(), delta.state_dict())


def stacked() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))


def load_sharded(directory: Path) -> list[dict[str, Any]]:
    torch.manual_seed(2)
    whole = stacked()
    cairn.save({"model": whole}, checkpoint_id=directory, no_dist=True) if torch.distributed.get_rank() == 0 else None
    torch.distributed.barrier()
    with torch.device("meta"):
        model = stacked()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    cairn.load_model(model, directory, key="model", device="cpu")
    got = model(torch.ones(2, 6))  # the sharded modules use the new parameters
    assert_same(got.detach(), whole(torch.ones(2, 6)).detach())
    state = model.state_dict()
    assert all(isinstance(tensor, DTensor) for tensor in state.values())
    assert_same({key: tensor.full_tensor() for key, tensor in state.items()}, dict(whole.state_dict()))
    got.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    return []


def test_sharded_parameters_on_the_meta_device(two: Gang, tmp_path: Path) -> None:
    two.run(load_sharded, tmp_path)


_PEAK = """
import sys, torch, cairn
from torch import nn

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(6)))
warm = nn.Sequential(nn.Linear(2, 2))
cairn.load_model(warm, sys.argv[2])
before = peak()
cairn.load_model(model, sys.argv[1])
print(peak() - before)
"""


def test_a_meta_model_has_no_second_copy(tmp_path: Path) -> None:
    layers = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(6)))
    size = sum(parameter.nbytes for parameter in layers.parameters()) >> 10
    cairn.save(layers.state_dict(), checkpoint_id=tmp_path / "large")
    cairn.save(nn.Sequential(nn.Linear(2, 2)).state_dict(), checkpoint_id=tmp_path / "small")
    command = [sys.executable, "-c", _PEAK, str(tmp_path / "large"), str(tmp_path / "small")]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown > 0.9 * size
    assert grown < 1.25 * size
