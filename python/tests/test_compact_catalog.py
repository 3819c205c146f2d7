"""Checkpoints with a compact catalog in `.metadata`: read by stock torch, by Cairn, and when damaged."""

import functools
import json
import pickletools
import re
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
import warm_python
from ranks import Gang
from same import assert_same, blank
from tool import OK, UNREADABLE, run, text_of
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
        assert list(cairn.open(tmp_path)) == list(state)
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


def without_catalog(directory: Path, copy: Path) -> Path:
    """Returns a copy of the checkpoint whose `.metadata` is the pickle alone, as stock torch writes it."""
    shutil.copytree(directory, copy)
    data, pickle_bytes = metadata_in(directory)
    (copy / ".metadata").write_bytes(data[:pickle_bytes])
    return copy


@pytest.fixture(scope="module")
def pair(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a checkpoint with a catalog and its copy without."""
    return saved, without_catalog(saved, tmp_path_factory.mktemp("copies") / "checkpoint")


def test_an_open_checkpoint_is_the_same_without_the_catalog(pair: tuple[Path, Path]) -> None:
    by_catalog, by_pickle = (cairn.open(directory) for directory in pair)
    assert list(by_catalog) == list(by_pickle)
    assert len(by_catalog) == len(by_pickle) == len(list(by_catalog))
    assert by_catalog.files == by_pickle.files
    assert repr(by_catalog).replace(str(pair[0]), "") == repr(by_pickle).replace(str(pair[1]), "")
    for key in [*list(by_pickle)[:40], "step", "model.w1099"]:
        assert by_catalog.info(key) == by_pickle.info(key)
        assert_same(by_catalog[key], by_pickle[key])
    assert_same(by_catalog.read("model.w5", slice(2, 7)), by_pickle.read("model.w5", slice(2, 7)))
    assert "model.w7" in by_catalog
    assert "model.x7" not in by_catalog
    texts = []
    for opened in (by_catalog, by_pickle):
        with pytest.raises(cairn.MissingKey, match="nearest") as raised:
            opened.info("model.w10990")
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("ls", "--json"),
        ("inspect",),
        ("inspect", "--json"),
        ("inspect", "model.w10*", "step"),
        ("inspect", "model.w", "--depth", "1"),
        ("cat", "model.w7"),
        ("cat", "step", "--json"),
        ("cat", "model.x7"),
    ],
)
def test_the_tool_prints_the_same_without_the_catalog(pair: tuple[Path, Path], words: tuple[str, ...]) -> None:
    done = [run(words[0], directory, *words[1:]) for directory in pair]
    differing = rb"/\S*/checkpoint\b|save_id.*|  written by .*"
    texts = [(each.returncode, re.sub(differing, b"", each.stdout)) for each in done]
    if "--json" in words and words[0] == "inspect":
        assert [len(json.loads(each.stdout)["keys"]) for each in done] == [len(cairn.open(pair[0]))] * 2
    assert texts[0] == texts[1]
    assert done[0].stderr.replace(bytes(pair[0]), b"") == done[1].stderr.replace(bytes(pair[1]), b"")


def test_diff_by_the_catalog_and_by_the_pickle(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert not cairn.diff(*pair)  # no difference
    for directory in pair:
        report = cairn.diff(pair[0], directory, keys=["model.w1*", "step"])
        assert not report
        assert report.tensors == 112 + 99
    one = {f"key{i}": torch.full((2,), float(i)) for i in range(4200)}
    other = {key: tensor for key, tensor in one.items() if key != "key7"} | {"key9": torch.zeros(2), "new": 1}
    for name, state in (("one", one), ("other", other)):
        cairn.save(state, checkpoint_id=tmp_path / name, no_dist=True)
    plain = [without_catalog(tmp_path / name, tmp_path / f"{name}_plain") for name in ("one", "other")]
    expected = cairn.diff(*plain)
    found = cairn.diff(tmp_path / "one", tmp_path / "other")
    assert {difference.key for difference in expected.differences} == {"key7", "key9", "new"}
    assert found == expected


READS = """
import sys
import cairn
cairn.open(sys.argv[2])["key5"]  # imports what a read needs
def read_bytes():
    return int(open("/proc/self/io").read().split()[1])
start = read_bytes()
opened = cairn.open(sys.argv[1])
opened["key4000"]
assert len(opened) == 4200
one = read_bytes()
assert len(list(opened)) == 4200
print(one - start, read_bytes() - one)
"""


def test_a_look_at_a_key_reads_a_small_part_of_the_metadata(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    cairn.save({"key5": torch.ones(2)}, checkpoint_id=small, no_dist=True)
    cairn.save({f"key{i}": torch.full((2,), float(i)) for i in range(4200)}, checkpoint_id=large, no_dist=True)
    done = warm_python.run([sys.executable, "-c", READS, large, small], capture_output=True, check=True, timeout=240)
    one, names = map(int, done.stdout.split())
    pickle_bytes = metadata_in(large)[1]
    assert one < pickle_bytes / 2
    assert names < pickle_bytes / 2


def test_the_tool_lists_the_keys_of_a_damaged_catalog(tmp_path: Path) -> None:
    cairn.save({f"key{i}": torch.full((2,), float(i)) for i in range(4200)}, checkpoint_id=tmp_path, no_dist=True)
    expected = text_of("ls", tmp_path)
    data, pickle_bytes = metadata_in(tmp_path)
    damaged = bytearray(data)
    damaged[pickle_bytes + 30_000] ^= 1  # in the second block: the first was printed already
    (tmp_path / ".metadata").write_bytes(damaged)
    done = run("ls", tmp_path)
    assert (done.returncode, done.stdout.decode()) == (OK, expected)
    assert b"compact catalog" in done.stderr
    damaged[pickle_bytes // 2] ^= 1  # the pickle too
    (tmp_path / ".metadata").write_bytes(damaged)
    done = run("ls", tmp_path)
    assert done.returncode == UNREADABLE
    assert b".metadata" in done.stderr
    for word in ("inspect", "verify"):
        assert run(word, tmp_path).returncode != OK
