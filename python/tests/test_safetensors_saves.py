"""Saves of safetensors models: the files, the overwrite, shards, consolidation and the readers of torch."""

import functools
import logging
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn._consolidate_hf_safetensors import (
    consolidate_safetensors_files,
    consolidate_safetensors_files_on_every_rank,
)
from cairn.quantized_hf_storage import QuantizedHuggingFaceStorageReader
from kills import Killer, assert_each_is_hit
from ranks import Gang
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sharded_states import assert_whole, names_in, shard_of_rank, sharded
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader as StockReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter as StockWriter
from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader as StockQuantizedReader

import cairn
from cairn.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

INDEX = "model.safetensors.index.json"
ONE = "model-00001-of-00001.safetensors"


def state_of(seed: float) -> dict[str, Any]:
    return {
        "scalar": torch.tensor(seed),
        "count": torch.tensor(int(seed)),
        "empty": torch.zeros(0, 3),
        "mask": torch.tensor([True, False, seed > 1]),
        "steps": torch.arange(5) * int(seed),
        "half": torch.full((3,), seed, dtype=torch.bfloat16),
        "layer": {"weight": (torch.arange(35.0) * seed).reshape(7, 5).t()},
    }


def flat(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {**{key: value for key, value in state.items() if key != "layer"}, "layer.weight": state["layer"]["weight"]}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key


def zeros_of(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: zeros_of(value) if isinstance(value, dict) else torch.zeros_like(value) for key, value in state.items()
    }


def test_files_have_torchs_names_and_every_reader_reads_the_files(tmp_path: Path) -> None:
    state = state_of(2.5)
    cairn.save(state, storage_writer=HuggingFaceStorageWriter(tmp_path))
    assert names_in(tmp_path) == {ONE, INDEX}
    assert_equal(load_file(tmp_path / ONE), flat(state))
    for load, reader in [
        (cairn.load, HuggingFaceStorageReader(tmp_path)),
        (cairn.load, StockReader(str(tmp_path))),
        (dcp.load, HuggingFaceStorageReader(tmp_path)),
        (dcp.load, StockReader(str(tmp_path))),
    ]:
        target = zeros_of(state)
        load(target, storage_reader=reader)
        assert_equal(flat(target), flat(state))
    assert cairn.verify(tmp_path)


def test_a_mapping_makes_several_files_and_an_overwrite_new_names(tmp_path: Path) -> None:
    mapping = {key: 1 + number % 2 for number, key in enumerate(flat(state_of(1.0)))}
    for stale in ("model.safetensors", "adapter_model.safetensors"):
        save_file({"stale": torch.ones(1)}, tmp_path / stale)
    cairn.save(state_of(1.0), storage_writer=HuggingFaceStorageWriter(tmp_path, mapping))
    first = names_in(tmp_path)
    assert "model.safetensors" not in first
    cairn.save(state_of(2.0), storage_writer=StockWriter(str(tmp_path), mapping))
    second = names_in(tmp_path)
    assert first & second == {INDEX, "adapter_model.safetensors"}
    assert len(second) == 4
    target = zeros_of(state_of(2.0))
    cairn.load(target, storage_reader=HuggingFaceStorageReader(tmp_path))
    assert_equal(flat(target), flat(state_of(2.0)))
    with pytest.raises(cairn.InvalidArgument, match=r"lacks the key.*scalar"):
        cairn.save(state_of(3.0), storage_writer=HuggingFaceStorageWriter(tmp_path, {"count": 1}))
    assert names_in(tmp_path) == second


def test_files_of_an_index_are_refused_without_the_index(tmp_path: Path) -> None:
    cairn.save(state_of(1.0), storage_writer=HuggingFaceStorageWriter(tmp_path))
    (tmp_path / INDEX).unlink()
    with pytest.raises(cairn.Corrupt, match=r"model\.safetensors\.index\.json"):
        cairn.open(tmp_path)
    assert cairn.open(tmp_path / ONE)["scalar"] == 1.0


def test_a_file_with_a_name_like_metadata_is_not_of_a_dcp_checkpoint(tmp_path: Path) -> None:
    for name in ("dataset.metadata", "notes.distcp"):
        (tmp_path / name).write_text("mine")
    for value in (1.0, 2.0):
        cairn.save({"w": torch.full((4,), value)}, storage_writer=HuggingFaceStorageWriter(tmp_path))
        assert torch.equal(cairn.open(tmp_path, tensors="torch")["w"], torch.full((4,), value))
    assert cairn.verify(tmp_path)
    assert (tmp_path / "dataset.metadata").read_text() == "mine"


def test_shards_beside_a_single_file_without_an_index_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4), "old": torch.zeros(1)}, tmp_path / "model.safetensors")
    dcp.save({"w": torch.ones(4)}, storage_writer=StockWriter(str(tmp_path), save_distributed=True), no_dist=True)
    shard = next(tmp_path.glob("shard-*"))
    target = {"w": torch.full((4,), -1.0)}
    with pytest.raises(cairn.Corrupt, match=f"model.safetensors.*{shard.name}"):
        cairn.load(target, storage_reader=HuggingFaceStorageReader(tmp_path))
    assert (target["w"] == -1.0).all()
    with pytest.raises(cairn.Corrupt, match="no index"):
        cairn.open(tmp_path)
    assert torch.equal(cairn.open(shard, tensors="torch")["w"], torch.ones(4))


def test_checksums_and_ids_copied_by_another_program_are_ignored(tmp_path: Path) -> None:
    cairn.save(state_of(1.0), storage_writer=HuggingFaceStorageWriter(tmp_path / "model"))
    with safe_open(tmp_path / "model" / ONE, "pt") as file:
        metadata = file.metadata()
    assert {"cairn_checksums", "cairn_save_id", "cairn_set"} <= set(metadata)
    for attempt in range(8):  # the library writes the metadata in any order
        directory = tmp_path / f"copy-{attempt}"
        directory.mkdir()
        save_file({"w": torch.arange(3.0)}, directory / "model.safetensors", metadata=metadata)
        target = {"w": torch.zeros(3)}
        cairn.load(target, checkpoint_id=directory)
        assert torch.equal(target["w"], torch.arange(3.0))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("save", [cairn.save, dcp.save])
def test_a_value_is_refused_before_anything_is_written(tmp_path: Path, save: Any) -> None:
    directory = tmp_path / "model"
    with pytest.raises((cairn.Error, CheckpointException)) as caught:
        save({"w": torch.ones(2), "lr": 0.1}, storage_writer=HuggingFaceStorageWriter(directory))
    text = f"{caught.value} {getattr(caught.value, 'failures', '')}"
    assert "tensors only" in text
    assert "'lr'" in text
    assert not directory.exists() or not names_in(directory)


def test_async_save_takes_the_writer(tmp_path: Path) -> None:
    state = state_of(3.0)
    saves = [cairn.async_save(state_of(seed), storage_writer=HuggingFaceStorageWriter(tmp_path)) for seed in (1.0, 2.0)]
    saves.append(cairn.async_save(state, storage_writer=HuggingFaceStorageWriter(tmp_path)))
    for save in saves:
        save.result()
    [file] = tmp_path.glob("*.safetensors")
    assert_equal(load_file(file), flat(state))


def test_install_replaces_the_names(tmp_path: Path) -> None:
    import torch.distributed.checkpoint.hf_storage as theirs

    cairn.install()
    try:
        assert theirs.HuggingFaceStorageWriter is HuggingFaceStorageWriter
        assert issubclass(HuggingFaceStorageWriter, StockWriter)
        dcp.save({"w": torch.ones(2)}, storage_writer=theirs.HuggingFaceStorageWriter(tmp_path))
    finally:
        cairn.uninstall()
    assert "cairn_save_id" in (tmp_path / INDEX).read_text()


def test_a_remote_path_stays_torchs_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("fsspec")
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    class Remote(StockWriter):
        def __init__(self) -> None:
            super().__init__("memory-model")
            self.fs = FsspecWriter("memory://model").fs
            self.path = "memory://model"

    with caplog.at_level(logging.WARNING, "cairn"):
        cairn.save({"w": torch.ones(2)}, storage_writer=Remote())
    assert "does not store in a local directory" in caplog.text


def whole_state(seed: int) -> dict[str, torch.Tensor]:
    return {
        "weight": (torch.arange(4000.0) * seed).reshape(1000, 4),
        "odd": torch.arange(10) + seed,
        "mask": torch.arange(9) % 2 == seed % 2,
        "scalar": torch.tensor(1.5 * seed),
        "step": torch.tensor(seed),
    }


def sharded_state(seed: int) -> dict[str, Any]:
    return sharded(whole_state(seed))


def save_shards(directory: Path, seed: int, option: str = "save_distributed") -> None:
    writer = HuggingFaceStorageWriter(directory, **{"save_distributed": True, option: True})  # type: ignore[arg-type]
    cairn.save(sharded_state(seed), storage_writer=writer)


def load_shards(directory: Path, seed: int) -> None:
    target = {key: torch.zeros_like(tensor) for key, tensor in sharded_state(seed).items()}
    cairn.load(target, storage_reader=HuggingFaceStorageReader(directory))
    assert_whole(target, whole_state(seed))


def test_shards_of_four_ranks_are_loaded_by_two_and_by_torch(two: Gang, four: Gang, tmp_path: Path) -> None:
    four.run(save_shards, tmp_path, 1)
    assert names_in(tmp_path) == {f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in range(1, 5)}
    two.run(load_shards, tmp_path, 1)
    stock = {key: torch.zeros_like(tensor) for key, tensor in whole_state(1).items()}
    dcp.load(stock, storage_reader=StockReader(str(tmp_path)), no_dist=True)
    assert_equal(stock, whole_state(1))
    before = names_in(tmp_path)
    with pytest.raises(Exception, match="new directory"):
        four.run(save_shards, tmp_path, 2)
    assert names_in(tmp_path) == before
    two.run(load_shards, tmp_path, 1)
    for seed in (2, 3):  # the shards of a consolidation replace each other
        four.run(save_shards, tmp_path / "new", seed, "enable_consolidation")
        assert len(names_in(tmp_path / "new" / "sharded")) == 4
        two.run(load_shards, tmp_path / "new" / "sharded", seed)


def test_the_writer_has_no_option_for_shards_over_a_model(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="overwrite_with_shards"):
        HuggingFaceStorageWriter(tmp_path, save_distributed=True, overwrite_with_shards=True)  # type: ignore[call-arg]


def test_shards_of_two_saves_and_a_part_of_a_save_are_refused(four: Gang, tmp_path: Path) -> None:
    for seed in (1, 2):
        four.run(save_shards, tmp_path / str(seed), seed)
    name = "shard-00002-model-00001-of-00001.safetensors"
    shutil.copyfile(tmp_path / "2" / name, tmp_path / "1" / name)
    with pytest.raises(cairn.Corrupt, match=f"files of several saves.*{name}"):
        cairn.open(tmp_path / "1")
    (tmp_path / "2" / name).unlink()
    with pytest.raises(cairn.Corrupt, match=r"lacks files of the save.*4 files"):
        cairn.open(tmp_path / "2")


def save_whole(directory: Path, sharded: bool) -> None:
    state = {"w": shard_of_rank(torch.ones(8))} if sharded else {"a": torch.ones(3), "b": torch.zeros(2)}
    cairn.save(state, storage_writer=HuggingFaceStorageWriter(directory, None if sharded else {"a": 1, "b": 2}))


def test_ranks_with_whole_tensors_share_the_files_of_one_model(two: Gang, tmp_path: Path) -> None:
    two.run(save_whole, tmp_path / "whole", False)
    assert len(names_in(tmp_path / "whole")) == 3
    assert set(cairn.open(tmp_path / "whole")) == {"a", "b"}
    with pytest.raises(Exception, match="no rank holds all tensors"):
        two.run(save_whole, tmp_path / "sharded", True)


def consolidate_together(source: Path, target: Path) -> None:
    mapping = {"weight": 1, "odd": 2, "mask": 2, "scalar": 1, "step": 2}
    consolidate_safetensors_files_on_every_rank(str(source), str(target), mapping)


@pytest.mark.parametrize("saved_by", ["cairn", "torch"])
def test_consolidation_keeps_every_value(four: Gang, two: Gang, tmp_path: Path, saved_by: str) -> None:
    source = tmp_path / "shards"
    if saved_by == "cairn":
        four.run(save_shards, source, 3)
    else:
        four.run(save_shards_by_torch, source)
    consolidate_safetensors_files(str(source), str(tmp_path / "one"), dict.fromkeys(whole_state(3), 1))
    assert names_in(tmp_path / "one") == {ONE, INDEX}
    assert_equal(load_file(tmp_path / "one" / ONE), whole_state(3))
    two.run(consolidate_together, source, tmp_path / "two")
    files = sorted((tmp_path / "two").glob("*.safetensors"))
    assert_equal(load_file(files[0]) | load_file(files[1]), whole_state(3))
    two.run(load_shards, tmp_path / "two", 3)
    with pytest.raises(cairn.InvalidArgument, match="lacks the key"):
        consolidate_safetensors_files(str(source), str(tmp_path / "one"), {"weight": 1})
    with pytest.raises(cairn.MissingKey, match="other"):
        consolidate_safetensors_files(str(source), str(tmp_path / "one"), {"other": 1})
    assert_equal(load_file(tmp_path / "one" / ONE), whole_state(3))


def save_shards_by_torch(directory: Path) -> None:
    dcp.save(sharded_state(3), storage_writer=StockWriter(str(directory), save_distributed=True))


def test_the_writer_consolidates_the_saved_shards(four: Gang, tmp_path: Path) -> None:
    for seed in (1, 2):
        four.run(save_shards, tmp_path, seed, "enable_consolidation")
        model = next(tmp_path.glob("model-*.safetensors"))
        assert names_in(tmp_path) == {model.name, INDEX, "sharded"}
        assert_equal(load_file(model), whole_state(seed))


def test_a_flipped_byte_does_not_pass_a_consolidation(four: Gang, tmp_path: Path) -> None:
    four.run(save_shards, tmp_path / "shards", 1)
    shard = tmp_path / "shards" / "shard-00003-model-00001-of-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(cairn.Corrupt, match="shard-00003"):
        consolidate_safetensors_files(str(tmp_path / "shards"), str(tmp_path / "one"), {})
    assert names_in(tmp_path / "one") == set()


def test_quantised_tensors_are_those_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(1)
    tensors = {
        "a.weight": torch.randn(200, 150).to(torch.float8_e4m3fn),
        "a.weight_scale_inv": torch.rand(2, 2),
        "plain": torch.randn(4),
    }
    mapping = {"a.weight": 1, "a.weight_scale_inv": 2, "plain": 1}
    cairn.save(tensors, storage_writer=HuggingFaceStorageWriter(tmp_path, mapping))
    results = []
    for load, reader in [(dcp.load, StockQuantizedReader), (cairn.load, QuantizedHuggingFaceStorageReader)]:
        target = {"a.weight": torch.zeros(200, 150), "plain": torch.zeros(4)}
        load(target, storage_reader=reader(str(tmp_path)))
        results.append(target)
    assert_equal(results[1], results[0])
    assert results[0]["a.weight"].abs().sum() > 0


STATES = [{f"layer{i}": torch.full((64, 1024), 10.0 * seed + i) for i in range(8)} for seed in (1, 2)]
FILES = {key: 1 + number % 3 for number, key in enumerate(STATES[0])}


def save_in_three_files(number: int, directory: Path) -> None:
    """With one thread: the order of the calls is the same in each save."""
    with mock.patch("cairn.filesystem._THREADS", 1):
        cairn.save(STATES[number], storage_writer=HuggingFaceStorageWriter(directory, FILES))


# The steps at the top of src/commit/model/model_commit.cc.
COMMIT = r"renameat2? \.cairn-model-ID/index -> model\.safetensors\.index\.json"
FIRST, FILE, LAST = (rf"model-0000{number}-of-00003(-ID)?\.safetensors" for number in ("1", r"\d", "3"))
STEPS = {
    "claim": r"mkdirat \.cairn-model-ID",
    "claim, with the lease": r".* -> \.cairn-model-ID/lease",
    "write, the first file": rf"pwrite \.cairn-model-ID/{FIRST}",
    "write, the last file": rf"pwrite \.cairn-model-ID/{LAST}",
    "write, synced": rf"fsync \.cairn-model-ID/{FILE}",
    "publish": rf"fsync \.cairn-model-ID/{FILE}\nrenameat2 \.cairn-model-ID/{FILE} -> {FILE}",
    "publish, between two files": rf"renameat2 .* -> {FILE}\nrenameat2 .* -> {FILE}",
    "publish, synced": rf"renameat2 .* -> {FILE}\nfsync \.",
    "seal": r".* -> \.cairn-model-ID/index",
    "seal, synced": r"fsync \.cairn-model-ID\nfsync \.",
    "seal, with the list of the replaced files": r".* -> \.cairn-model-ID/replaced",
    "commit": COMMIT,
    "commit, synced": rf"{COMMIT}\nfsync \.",
    "clean": rf"fsync \.\nunlinkat {FILE}",
    "clean, between two files": rf"unlinkat {FILE}\nunlinkat {FILE}",
    "clean, synced": rf"unlinkat {FILE}\nfsync \.",
    "clean, the folder": r"unlinkat \.cairn-model-ID",
}


@pytest.mark.slow
def test_kills_at_each_place_of_an_overwrite(checkpoint: Path, killer: Killer) -> None:
    """Every reader finds the whole old or the whole new model, and the next save removes all leftovers."""
    save_in_three_files(0, checkpoint)
    (checkpoint / "adapter_model.safetensors").write_bytes(b"mine")
    runs = []
    for run in killer.kill_before_each_call(functools.partial(save_in_three_files, 1, checkpoint), checkpoint):
        runs.append(run)
        target = zeros_of(STATES[0])
        cairn.load(target, storage_reader=HuggingFaceStorageReader(checkpoint))
        assert_equal(target, STATES[run.has_made(COMMIT)])
        assert (len(names_in(checkpoint)) != 5) == (run.is_killed and len(run.calls) > 1), run.calls
        save_in_three_files(0, checkpoint)
        assert len(names_in(checkpoint)) == 5, names_in(checkpoint)
    assert_each_is_hit(STEPS, runs)
    assert (checkpoint / "adapter_model.safetensors").read_bytes() == b"mine"
