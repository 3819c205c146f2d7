"""Checkpoints with a compact catalog in `.metadata`: read by stock torch, by Cairn, and when damaged."""

import functools
import pickletools
import warnings
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from same import assert_same, blank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cairn

KEYS = 1100  # over four ranks more than the 4,096 chunks from which on there is a catalog


def sharded(step: int) -> dict[str, Any]:
    """Tensors with a shard on each rank, and a nested value."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensors = {
        f"w{i}": distribute_tensor(torch.arange(11.0) + 100 * i + step, mesh, [Shard(0)], src_data_rank=None)
        for i in range(KEYS)
    }
    return {"model": tensors, "groups": [{"lr": 0.5 * step, "betas": (0.9, 0.99)}], "step": step}


def own_shards(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"model": {key: tensor.to_local() for key, tensor in state["model"].items()}}


def save_sharded(directory: Path) -> None:
    cairn.save(sharded(3), checkpoint_id=directory)


def load_sharded(directory: Path, library: str) -> None:
    target = sharded(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if library == "torch" else "error")
        {"cairn": cairn.load, "torch": stock.dcp.load}[library](target, checkpoint_id=directory)
    assert_same(own_shards(target), own_shards(sharded(3)))


def metadata_in(directory: Path) -> tuple[bytes, int]:
    """Returns the bytes of `.metadata`, and the length of its pickle."""
    data = (directory / ".metadata").read_bytes()
    *_, (opcode, _, position) = pickletools.genops(data)
    assert opcode.name == "STOP"
    return data, position + 1


@pytest.fixture(scope="module")
def saved(four: Gang, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a checkpoint of four ranks with a catalog."""
    directory = tmp_path_factory.mktemp("compact") / "checkpoint"
    four.run(save_sharded, directory)
    for library in ("cairn", "torch"):
        four.run(load_sharded, directory, library)
    data, pickle_bytes = metadata_in(directory)
    assert data.count(b"CAIRNCAT") == 2
    assert data.index(b"CAIRNCAT") > pickle_bytes
    return directory


def test_two_ranks_load_with_cairn_and_with_stock_torch(saved: Path, two: Gang) -> None:
    for library in ("cairn", "torch"):
        two.run(load_sharded, saved, library)


def test_the_metadata_of_a_load_is_that_of_stock_torch(saved: Path) -> None:
    reader = cairn.FileSystemReader(saved)
    planner = cairn.DefaultLoadPlanner()
    target = {"step": 0, "model": {"w7": torch.zeros(11)}}
    cairn.load(target, storage_reader=reader, planner=planner, no_dist=True)
    assert_same(target, {"step": 3, "model": {"w7": torch.arange(11.0) + 703}})
    expected = stock.metadata_of(saved)
    assert planner.metadata.state_dict_metadata == expected.state_dict_metadata
    assert planner.metadata.storage_data == expected.storage_data
    assert planner.metadata.planner_data == expected.planner_data


def test_a_missing_key_and_a_partial_load(saved: Path) -> None:
    target = {"model": {"w7": torch.zeros(11), "x7": torch.zeros(11)}}
    with pytest.raises(cairn.MissingKey, match=r"model\.w7") as raised:
        cairn.load(target, checkpoint_id=saved, no_dist=True)
    assert raised.value.keys == ("model.x7",)
    planner = cairn.DefaultLoadPlanner(allow_partial_load=True)
    cairn.load(target, checkpoint_id=saved, planner=planner, no_dist=True)
    assert_same(target["model"]["w7"], torch.arange(11.0) + 703)


def test_one_process_with_many_keys(tmp_path: Path) -> None:
    state = {f"key{i}": torch.full((i % 3, 2), float(i)) for i in range(4200)} | {"value": [1, "a"], "": 5}
    cairn.save(state, checkpoint_id=tmp_path, no_dist=True)
    assert (tmp_path / ".metadata").read_bytes().count(b"CAIRNCAT") == 2
    for load in (
        functools.partial(cairn.load, checkpoint_id=tmp_path, no_dist=True),
        functools.partial(stock.load, directory=tmp_path),
    ):
        target = blank(state)
        load(target)
        assert_same(target, state)
    assert cairn.verify(tmp_path)


def test_small_metadata_has_no_catalog(tmp_path: Path) -> None:
    cairn.save({f"key{i}": torch.ones(2) for i in range(4000)}, checkpoint_id=tmp_path, no_dist=True)
    assert b"CAIRNCAT" not in (tmp_path / ".metadata").read_bytes()


def test_damage_of_the_catalog_warns_and_the_pickle_is_read(tmp_path: Path) -> None:
    state = {f"key{i}": torch.full((2,), float(i)) for i in range(4200)}
    cairn.save(state, checkpoint_id=tmp_path, no_dist=True)
    data, pickle_bytes = metadata_in(tmp_path)
    damaged = bytearray(data)
    damaged[pickle_bytes + 200] ^= 1  # in the first block
    (tmp_path / ".metadata").write_bytes(damaged)
    target = blank(state)
    with pytest.warns(cairn.DamageWarning, match="compact catalog"):
        cairn.load(target, checkpoint_id=tmp_path, no_dist=True)
    assert_same(target, state)
    with pytest.warns(cairn.DamageWarning, match="compact catalog"):
        assert len(cairn.open(tmp_path)) == len(state)
    report = cairn.verify(tmp_path)
    assert not report
    assert report.problems[0].file == ".metadata"
    stock.load(target, tmp_path)


def test_without_the_catalog_everything_is_as_before(tmp_path: Path) -> None:
    state = {f"key{i}": torch.full((2,), float(i)) for i in range(4200)}
    cairn.save(state, checkpoint_id=tmp_path, no_dist=True)
    data, pickle_bytes = metadata_in(tmp_path)
    (tmp_path / ".metadata").write_bytes(data[:pickle_bytes])  # as stock torch writes it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = blank(state)
        cairn.load(target, checkpoint_id=tmp_path, no_dist=True)
    assert_same(target, state)
