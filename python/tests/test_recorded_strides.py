"""The strides of tensors in the metadata: recorded as by the installed torch, and read whatever the installed torch.

torch has recorded the strides since 2.15. On an older torch the tests with `RECORDS` check that none are recorded.
"""

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from ranks import Gang
from stock import dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import cairn

RECORDS = "strides" in {field.name for field in dataclasses.fields(TensorProperties)}
later_torch = pytest.mark.skipif(not RECORDS, reason="this torch records no strides")


def state() -> dict[str, Any]:
    table = torch.arange(24.0).reshape(4, 6)
    return {
        "rows": table,
        "columns": table.t(),
        "window": table[1:3, ::2],
        "repeated": torch.ones(3, 1).expand(3, 5),
        "scalar": torch.tensor(1.0),
        "empty": torch.empty(0, 3),
        "of one row": torch.zeros(9).as_strided((1, 3), (7, 1)),
        "of size one": torch.zeros(1).as_strided((1, 1), (0, 9)),
        "five dimensions": torch.zeros(2, 1, 3, 1, 2).permute(4, 3, 2, 1, 0),
        "conjugate": torch.zeros(2, 3, dtype=torch.complex64).t().conj(),
        "boolean": torch.zeros(4, 2, dtype=torch.bool).t(),
        "quantized": torch.quantize_per_tensor(torch.rand(4, 8), 0.1, 3, torch.qint8),
        "parameter": torch.nn.Parameter(torch.rand(3, 2).t()),
        "step": 7,
    }


def synchronous(values: dict[str, Any], directory: Path) -> Metadata:
    return cairn.save(values, checkpoint_id=directory, no_dist=True)


def by_thread(values: dict[str, Any], directory: Path) -> Any:
    kind = AsyncCheckpointerType.THREAD
    return cairn.async_save(values, checkpoint_id=directory, no_dist=True, async_checkpointer_type=kind).result()


def by_writer(values: dict[str, Any], directory: Path) -> Any:
    kind = AsyncCheckpointerType.PROCESS
    return cairn.async_save(values, checkpoint_id=directory, no_dist=True, async_checkpointer_type=kind).result()


class OtherPlanner(dcp.DefaultSavePlanner):
    def lookup_object(self, index: Any) -> Any:
        return super().lookup_object(index)


def by_protocol(values: dict[str, Any], directory: Path) -> Metadata:
    return cairn.save(values, checkpoint_id=directory, no_dist=True, planner=OtherPlanner())


def twice(values: dict[str, Any], directory: Path) -> Metadata:
    cairn.save(copy.deepcopy(values), checkpoint_id=directory, no_dist=True)
    return cairn.save(values, checkpoint_id=directory, no_dist=True)


@pytest.mark.parametrize("save", [synchronous, by_thread, by_writer, by_protocol, twice])
def test_strides_are_recorded_as_by_torch(save: Any, checkpoint: Path, tmp_path: Path) -> None:
    values = state()
    returned = save(values, checkpoint)
    theirs = stock.save(values, tmp_path / "stock")
    saved = stock.metadata_of(checkpoint).state_dict_metadata
    assert saved == theirs.state_dict_metadata == stock.metadata_of(tmp_path / "stock").state_dict_metadata
    if isinstance(returned, Metadata):
        assert returned.state_dict_metadata == theirs.state_dict_metadata
    assert dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata == saved
    assert cairn.FileSystemReader(checkpoint).read_metadata().state_dict_metadata == saved
    assert cairn.verify(checkpoint)
    opened = cairn.open(checkpoint)
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            assert opened.info(key).strides == (tuple(value.stride()) if RECORDS else None), key


def test_a_large_state_records_strides_in_the_compact_catalog(checkpoint: Path, tmp_path: Path) -> None:
    values = {f"w{i}": torch.zeros(2, 3).t() if i % 2 else torch.zeros(3, 2) for i in range(4100)}
    returned = cairn.save(values, checkpoint_id=checkpoint, no_dist=True)
    theirs = stock.save(values, tmp_path / "stock")
    assert stock.metadata_of(checkpoint).state_dict_metadata == theirs.state_dict_metadata
    assert returned.state_dict_metadata == theirs.state_dict_metadata
    assert cairn.FileSystemReader(checkpoint).read_metadata().state_dict_metadata == theirs.state_dict_metadata
    opened = cairn.open(checkpoint)
    assert [opened.info(key).strides for key in ("w0", "w1")] == ([(2, 1), (1, 3)] if RECORDS else [None, None])
    report = cairn.verify(checkpoint)
    assert report, report


def of_ranks(library: str, directory: Path) -> None:
    """A rank holds rows, columns of a transposed tensor, copies, and a shard that it declares."""
    mesh = init_device_mesh("cpu", (2,))
    rank = torch.distributed.get_rank()
    table = torch.arange(24.0).reshape(4, 6)

    def spread(local: torch.Tensor, placement: Any) -> DTensor:
        return DTensor.from_local(local, mesh, [placement], run_check=False, shape=table.shape, stride=table.stride())

    values: dict[str, Any] = {
        "rows": spread(table[2 * rank :][:2].clone(), Shard(0)),
        "columns": spread(table[:, 3 * rank :][:, :3], Shard(1)),
        "transposed": spread(table[2 * rank :][:2].t().contiguous().t(), Shard(0)),
        "copies": spread(table.clone(), Replicate()),
        "own": torch.zeros(2, 2).t(),
    }
    if hasattr(dcp, "CheckpointableTensor"):
        declared = torch.arange(40.0).reshape(4, 10)[:, :6]
        declared.global_shape = (4, 6)
        declared.global_offsets = declared.local_offsets = ((2 * rank, 0),)
        declared.local_sizes = ((2, 6),)
        values["declared"] = declared
    {"cairn": cairn, "torch": dcp}[library].save(values, checkpoint_id=directory)


def test_ranks_record_the_strides_of_local_tensors(two: Gang, tmp_path: Path) -> None:
    for library in ("cairn", "torch"):
        two.run(of_ranks, library, tmp_path / library)
    ours, theirs = (stock.metadata_of(tmp_path / library).state_dict_metadata for library in ("cairn", "torch"))
    assert {key: entry.properties for key, entry in ours.items()} == {
        key: entry.properties for key, entry in theirs.items()
    }
    if RECORDS:
        found = {key: entry.properties.strides for key, entry in ours.items()}
        expected = {"rows": (6, 1), "columns": (6, 1), "transposed": (1, 2), "copies": (6, 1), "own": (1, 2)}
        assert expected.items() <= found.items()


def with_strides(directory: Path, monkeypatch: pytest.MonkeyPatch, strides: Any) -> None:
    """Rewrites `.metadata` in the form of torch 2.15."""
    metadata = stock.metadata_of(directory)
    plain = TensorProperties.__getstate__
    with monkeypatch.context() as patch:
        patch.setattr(TensorProperties, "__getstate__", lambda self: (*plain(self)[:5], strides))
        stock.rewrite_metadata(directory, metadata)


@pytest.mark.parametrize("strides", [(1, 4), (), None], ids=str)
def test_strides_are_read_with_every_torch(
    strides: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cairn.save({"w": torch.arange(12.0).reshape(3, 4)}, checkpoint_id=checkpoint, no_dist=True)
    with_strides(checkpoint, monkeypatch, strides)
    loaded = {"w": torch.zeros(3, 4)}
    cairn.load(loaded, checkpoint_id=checkpoint, no_dist=True)
    assert torch.equal(loaded["w"], torch.arange(12.0).reshape(3, 4))
    assert cairn.open(checkpoint).info("w").strides == strides
    properties = cairn.FileSystemReader(checkpoint).read_metadata().state_dict_metadata["w"].properties
    assert properties == (TensorProperties(strides=strides) if RECORDS else TensorProperties())
    command = [Path(sys.executable).with_name("cairn"), "inspect", "--json", checkpoint]
    shown = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert shown["keys"][0].get("strides") == (None if strides is None else list(strides))
    cairn.convert(checkpoint, tmp_path / "copy", to="dcp")
    assert cairn.open(tmp_path / "copy").info("w").strides == strides
    assert not cairn.diff(checkpoint, tmp_path / "copy")


@pytest.mark.parametrize("strides", [(-1, 1), (2**63, 1), (1,) * 65, ("1", 1), 3, "41"], ids=repr)
def test_strides_that_cannot_be_are_refused(strides: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cairn.save({"w": torch.zeros(3, 4)}, checkpoint_id=checkpoint, no_dist=True)
    with_strides(checkpoint, monkeypatch, strides)
    with pytest.raises(cairn.Corrupt, match="strides that cannot be") as caught:
        cairn.load({"w": torch.zeros(3, 4)}, checkpoint_id=checkpoint, no_dist=True)
    assert caught.value.key == "w"


@later_torch
def test_metadata_of_older_versions_is_read(checkpoint: Path) -> None:
    cairn.save({"w": torch.zeros(3, 4)}, checkpoint_id=checkpoint, no_dist=True)
    metadata = stock.metadata_of(checkpoint)
    metadata.state_dict_metadata["w"].properties.strides = None
    stock.rewrite_metadata(checkpoint, metadata)
    assert cairn.FileSystemReader(checkpoint).read_metadata().state_dict_metadata == metadata.state_dict_metadata
    loaded = {"w": torch.ones(3, 4)}
    cairn.load(loaded, checkpoint_id=checkpoint, no_dist=True)
    assert not loaded["w"].any()
