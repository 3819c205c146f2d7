"""Safetensors files and models: opened, loaded, listed and verified as checkpoints."""

import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Gang
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from tensor_dtypes import OF_EVERY_FORMAT
from tool import CHECK_FAILED, json_of, run, text_of
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

import cairn


def of_every_dtype() -> dict[str, torch.Tensor]:
    """Tensors of 24 random bytes each, and of shapes that have caused faults elsewhere."""
    generator = torch.Generator().manual_seed(7)
    tensors = {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), 'é "quoted"\n': torch.ones(2)}
    for dtype in OF_EVERY_FORMAT:
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (24,), dtype=torch.uint8, generator=generator)
        tensors[str(dtype)] = raw.view(dtype)
    return tensors


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def assert_loads(checkpoint_id: Path, expected: dict[str, torch.Tensor]) -> None:
    state = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
    cairn.load(state, checkpoint_id=checkpoint_id)
    for key, tensor in expected.items():
        assert bits(state[key]) == bits(tensor), key


def test_a_file_is_a_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    tensors = of_every_dtype()
    save_file(tensors, file, {"format": "pt"})
    assert_loads(file, tensors)
    assert_loads(tmp_path, tensors)
    opened = cairn.open(file, tensors="torch")
    assert set(opened) == set(tensors)
    for key, tensor in tensors.items():
        assert bits(opened[key][...]) == bits(tensor), key


def test_a_model_in_several_files(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": torch.full((3, 4), float(i)) for i in range(6)}
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for number, name in enumerate(names):
        save_file({key: tensors[key] for key in list(tensors)[number::2]}, tmp_path / name)
    assert_loads(tmp_path, tensors)
    weight_map = {key: names[i % 2] for i, key in enumerate(tensors)}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    save_file({"stale": torch.ones(1)}, tmp_path / "model.safetensors")  # as an older save leaves it: not in the index
    assert_loads(tmp_path, tensors)
    assert set(cairn.open(tmp_path)) == set(tensors)
    weight_map["layer.0"] = names[1]
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(cairn.Corrupt, match=r"lacks a tensor.*layer\.0.*model-00002"):
        cairn.open(tmp_path)
    index.write_text(json.dumps({"weight_map": {"layer.0": "../model.safetensors"}}))
    with pytest.raises(cairn.UnsafeContent, match="outside the directory"):
        cairn.open(tmp_path)


def test_an_index_may_name_files_in_subfolders(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    (directory / "experts" / "0").mkdir(parents=True)
    tensors = {"w": torch.arange(4.0), "expert": torch.ones(2, 2)}
    save_file({"w": tensors["w"]}, directory / "base.safetensors")
    save_file({"expert": tensors["expert"]}, directory / "experts" / "0" / "part.safetensors")
    weight_map = {"w": "base.safetensors", "expert": "experts/0/part.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_loads(directory, tensors)
    assert cairn.verify(directory)
    assert "expert" in text_of("ls", directory)
    assert "expert" in text_of("inspect", directory)
    (directory / "experts").rename(tmp_path / "outside")
    (directory / "experts").symlink_to(tmp_path / "outside")
    with pytest.raises(cairn.UnsafeContent, match="link"):
        cairn.open(directory)


def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "revision"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save_file({"w": torch.arange(4.0)}, blobs / "0123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    assert_loads(snapshot, {"w": torch.arange(4.0)})
    assert_loads(snapshot / "model.safetensors", {"w": torch.arange(4.0)})


def test_a_directory_with_metadata_stays_a_dcp_checkpoint(tmp_path: Path) -> None:
    cairn.save({"w": torch.ones(2)}, checkpoint_id=tmp_path)
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert_loads(tmp_path, {"w": torch.ones(2)})
    assert_loads(tmp_path / "model.safetensors", {"w": torch.zeros(2)})


@pytest.mark.filterwarnings("ignore")
def test_a_model_beside_a_trace_of_a_dcp_checkpoint_is_not_taken_for_the_checkpoint(tmp_path: Path) -> None:
    save_file({"w": torch.full((2,), 7.0)}, tmp_path / "model.safetensors")
    dcp.save({"w": torch.ones(2)}, checkpoint_id=tmp_path, use_collectives=False)
    assert_loads(tmp_path, {"w": torch.ones(2)})  # what the rank saved alone
    (tmp_path / "__0.metadata").unlink()
    with pytest.raises(cairn.NotFound, match="no checkpoint"):
        cairn.open(tmp_path)


def shard_of_rank(whole: torch.Tensor) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(whole, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])


def save_shards(directory: Path) -> None:
    """As torch's writer does it, a file for each rank."""
    state = {"w": shard_of_rank(torch.arange(40.0).reshape(10, 4)), "b": shard_of_rank(torch.arange(10))}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(directory), save_distributed=True))


def load_shards(directory: Path) -> None:
    target = {"w": shard_of_rank(torch.zeros(10, 4)), "b": shard_of_rank(torch.zeros(10, dtype=torch.int64))}
    cairn.load(target, checkpoint_id=directory)
    assert torch.equal(target["w"].full_tensor(), torch.arange(40.0).reshape(10, 4))
    assert torch.equal(target["b"].full_tensor(), torch.arange(10))


def test_shards_of_torchs_writer_are_put_together(two: Gang, four: Gang, tmp_path: Path) -> None:
    four.run(save_shards, tmp_path)
    assert len(list(tmp_path.glob("shard-*"))) == 4
    assert_loads(tmp_path, {"w": torch.arange(40.0).reshape(10, 4), "b": torch.arange(10)})
    two.run(load_shards, tmp_path)
    next(tmp_path.glob("shard-*")).unlink()
    with pytest.raises(cairn.Corrupt, match="w"):
        cairn.load({"w": torch.zeros(10, 4)}, checkpoint_id=tmp_path)


def test_files_that_share_a_tensor_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    save_file({"w": torch.ones(2)}, tmp_path / "b.safetensors")
    with pytest.raises(cairn.Corrupt, match=r"two files .*open one of the files alone.*'w'.*b\.safetensors"):
        cairn.open(tmp_path)


def test_the_tool_shows_and_verifies_a_model(tmp_path: Path) -> None:
    save_file({"layer.w": torch.ones(4, 4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert "layer.w" in text_of("ls", path)
        assert "layer.w" in text_of("inspect", path)
        assert json_of("inspect", path)["format"] == "safetensors"
        found = json_of("verify", path)
        assert (found["ok"], found["bytes_checked"], found["bytes_unchecked"]) == (True, 0, 32)
    checkpoint = tmp_path / "step-1"
    cairn.save({"w": torch.ones(2)}, checkpoint_id=checkpoint)
    assert json_of("verify", checkpoint)["format"] == "dcp"


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    data = save({"w": torch.arange(8.0), "b": torch.ones(2)})
    for damaged in (data[:-1], data + b"x", data[:4], b"", data.replace(b'"F32"', b'"F99"', 1)):
        file.write_bytes(damaged)
        with pytest.raises(cairn.Corrupt, match=r"model\.safetensors"):
            cairn.open(file)
    # A file that grew a tensor over another one's bytes.
    header = json.dumps({name: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for name in ("a", "b")}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(cairn.Corrupt, match="share bytes"):
        cairn.open(file)
    assert run("verify", file).returncode == CHECK_FAILED


def accepted_by_safetensors(file: Path) -> bool:
    try:
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                opened.get_tensor(key)
    except (SafetensorError, OSError, AttributeError, TypeError, ValueError, RuntimeError, UnicodeDecodeError):
        return False
    return True


def test_no_file_is_accepted_that_safetensors_refuses(tmp_path: Path) -> None:
    seed = 20261122
    print("seed", seed)
    numbers = random.Random(seed)
    original = save(
        {"w": torch.arange(8.0), "b": torch.ones(2, dtype=torch.bfloat16), "s": torch.tensor(1)}, {"k": "v"}
    )
    file = tmp_path / "model.safetensors"
    accepted = 0
    for _ in range(1500):
        data = bytearray(original)
        for _ in range(numbers.randrange(1, 3)):
            place = numbers.randrange(min(len(data), 300))
            data[place] = numbers.choice([numbers.randrange(256), *b'0123456789{}[]",: '])
        file.write_bytes(data)
        try:
            cairn.open(file)
        except cairn.Error:
            continue
        accepted += 1
        assert accepted_by_safetensors(file), bytes(data)
    assert accepted > 50


def test_a_checkpoint_replaced_during_a_load_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(1 << 12)}, file)
    opened = cairn.open(tmp_path)
    other = tmp_path / "other"
    save_file({"w": torch.ones(1 << 12)}, other)
    shutil.move(other, file)
    assert opened["w"][...].max() == 0, "the file that was opened"
    assert cairn.open(tmp_path)["w"][...].max() == 1
