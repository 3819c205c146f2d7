"""cairn.save in one process: DCP's semantics, storage writers, and the returned Metadata."""

import copy
import dataclasses
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from same import assert_same, blank
from torch.distributed.checkpoint.metadata import Metadata

import cairn
from cairn._results.lazy_metadata import LazyMetadata

STATE = {"a": {"w": torch.rand(2, 3), "s": torch.tensor(1)}, "n": 3, "l": [torch.rand(1), {"x": None}]}


def test_metadata_is_filled_at_the_first_access(checkpoint: Path) -> None:
    metadata = cairn.save(STATE, checkpoint_id=checkpoint)
    assert type(metadata) is LazyMetadata
    assert isinstance(metadata, Metadata)
    assert metadata.state_dict_metadata == stock.metadata_of(checkpoint).state_dict_metadata
    assert type(metadata) is Metadata


LOOKS = {
    "compare": lambda metadata: metadata,
    "pickle": lambda metadata: pickle.loads(pickle.dumps(metadata)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "replace": dataclasses.replace,
    "fields": lambda metadata: Metadata(**{f.name: getattr(metadata, f.name) for f in dataclasses.fields(metadata)}),
    "vars": lambda metadata: Metadata(**vars(metadata)),
}


@pytest.mark.parametrize("look", LOOKS)
def test_metadata_behaves_like_dcps(look: str, checkpoint: Path) -> None:
    metadata = LOOKS[look](cairn.save(STATE, checkpoint_id=checkpoint))
    expected = stock.metadata_of(checkpoint)
    assert metadata == expected
    assert expected == metadata
    assert type(metadata) is Metadata


def test_metadata_can_be_shown_taken_apart_and_changed(checkpoint: Path) -> None:
    save = lambda: cairn.save(STATE, checkpoint_id=checkpoint)  # noqa: E731
    assert {f.name for f in dataclasses.fields(save())} == {f.name for f in dataclasses.fields(Metadata)}
    metadata = save()
    metadata.version = "mine"
    assert metadata.version == "mine"
    assert set(metadata.state_dict_metadata) == {"a.w", "a.s", "n", "l.0", "l.1.x"}


def test_metadata_is_shown_in_a_line_until_a_program_looks_inside(checkpoint: Path) -> None:
    metadata = cairn.save(STATE, checkpoint_id=checkpoint)
    # what a notebook asks before it shows the last value of a cell
    assert not isinstance(metadata, type) and not hasattr(metadata, "_repr_html_")
    assert not hasattr(metadata, "_ipython_canary_method_should_not_exist_")
    assert metadata.__class__ is Metadata
    assert repr(metadata).startswith(f"<Metadata of '{checkpoint}': 5 keys")
    assert metadata.state_dict_metadata
    assert repr(metadata) == repr(dataclasses.replace(metadata))
    assert repr(metadata).startswith("Metadata(state_dict_metadata={'a.w'")


def test_metadata_equals_the_metadata_of_dcp(checkpoint: Path, tmp_path: Path) -> None:
    ours = cairn.save(STATE, checkpoint_id=checkpoint)
    theirs = stock.save(STATE, tmp_path / "stock")
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert set(ours.storage_data) == set(theirs.storage_data)
    assert ours.version == theirs.version
    assert ours.storage_meta is not None
    assert os.fspath(ours.storage_meta.checkpoint_id or "") == os.fspath(checkpoint)
    assert ours.storage_meta.save_id


def test_the_caller_keeps_his_state(checkpoint: Path) -> None:
    inner = {"w": torch.ones(2), 1: "one"}
    state = {"a": inner, "b": [inner]}
    cairn.save(state, checkpoint_id=checkpoint)
    assert state["a"] is inner
    assert list(inner) == ["w", 1]


def test_a_name_used_twice_is_an_error(checkpoint: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match=r"duplicated flatten key a\.b") as caught:
        cairn.save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, checkpoint_id=checkpoint)
    assert caught.value.key == "a.b"
    assert not checkpoint.exists()


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.eye(3).to_sparse_csr(), "sparse_csr"),
        (torch.empty(3, device="meta"), "meta"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested"),
    ],
    ids=["coo", "csr", "meta", "nested"],
)
def test_values_that_dcp_cannot_save_are_refused_by_name(tensor: torch.Tensor, word: str, checkpoint: Path) -> None:
    with pytest.raises(NotImplementedError, match=word) as caught:
        cairn.save({"fine": torch.ones(1), "odd": tensor}, checkpoint_id=checkpoint)
    assert isinstance(caught.value, cairn.Unsupported)
    assert caught.value.key == "odd"
    assert not checkpoint.exists()


def test_subclasses_with_ordinary_memory_are_ordinary_tensors(checkpoint: Path) -> None:
    class Labelled(torch.Tensor):
        pass

    cairn.save(
        {"w": torch.arange(3.0).as_subclass(Labelled), "b": torch.nn.Buffer(torch.ones(1))}, checkpoint_id=checkpoint
    )
    state = {"w": torch.zeros(3), "b": torch.zeros(1)}
    stock.load(state, checkpoint)
    assert_same(state, {"w": torch.arange(3.0), "b": torch.ones(1)})
    target = {"w": torch.zeros(3).as_subclass(Labelled)}
    cairn.load(target, checkpoint_id=checkpoint)
    assert target["w"].tolist() == [0, 1, 2]


def test_empty_states(checkpoint: Path) -> None:
    cairn.save({}, checkpoint_id=checkpoint)
    cairn.load({}, checkpoint_id=checkpoint)
    stock.load({}, checkpoint)
    assert len(cairn.open(checkpoint)) == 0


def test_path_likes_and_relative_paths(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint.parent)
    cairn.save({"w": torch.ones(1)}, checkpoint_id=Path(checkpoint.name))
    state = {"w": torch.zeros(1)}
    cairn.load(state, checkpoint_id=checkpoint.name)
    assert_same(state, {"w": torch.ones(1)})


def test_missing_parents_are_made(checkpoint: Path) -> None:
    cairn.save({"w": torch.ones(1)}, checkpoint_id=checkpoint / "a" / "b")
    assert cairn.verify(checkpoint / "a" / "b")


def test_the_directory_may_be_a_link(checkpoint: Path, tmp_path: Path) -> None:
    checkpoint.mkdir()
    (tmp_path / "link").symlink_to(checkpoint)
    cairn.save({"w": torch.ones(1)}, checkpoint_id=tmp_path / "link")
    state = {"w": torch.zeros(1)}
    cairn.load(state, checkpoint_id=tmp_path / "link")
    assert_same(state, {"w": torch.ones(1)})


class TestWriters:
    """FileSystemWriter and FileSystemReader, Cairn's and torch's."""

    def test_are_torchs(self, tmp_path: Path) -> None:
        writer, reader = cairn.FileSystemWriter(tmp_path), cairn.FileSystemReader(tmp_path)
        assert isinstance(writer, stock.dcp.FileSystemWriter)
        assert isinstance(reader, stock.dcp.FileSystemReader)
        assert writer.checkpoint_id == tmp_path
        assert (writer.single_file_per_rank, writer.sync_files, writer.overwrite) == (True, True, True)
        first = writer.save_id
        writer.reset(tmp_path / "other")
        assert writer.checkpoint_id == tmp_path / "other"
        assert writer.save_id != first

    @pytest.mark.parametrize("kind", [cairn.FileSystemWriter, stock.dcp.FileSystemWriter], ids=["cairn", "torch"])
    def test_are_honoured(self, kind: Any, checkpoint: Path) -> None:
        cairn.save({"a": torch.ones(1), "b": 2}, storage_writer=kind(checkpoint, single_file_per_rank=False))
        assert len(list(checkpoint.glob("*.distcp"))) == 2
        state = {"a": torch.zeros(1), "b": 0}
        cairn.load(state, storage_reader=stock.dcp.FileSystemReader(checkpoint))
        assert_same(state, {"a": torch.ones(1), "b": 2})
        with pytest.raises(stock.dcp.CheckpointException, match="exists") as caught:
            cairn.save({"a": torch.zeros(1)}, storage_writer=kind(checkpoint, overwrite=False))
        assert isinstance(caught.value, cairn.InvalidArgument)
        cairn.load(state, storage_reader=cairn.FileSystemReader(checkpoint))
        assert_same(state, {"a": torch.ones(1), "b": 2})

    def test_checkpoint_id_resets_writers_and_readers(self, checkpoint: Path, tmp_path: Path) -> None:
        writer = cairn.FileSystemWriter(tmp_path / "elsewhere")
        cairn.save({"a": torch.ones(1)}, checkpoint_id=checkpoint, storage_writer=writer)
        assert writer.checkpoint_id == checkpoint
        assert not (tmp_path / "elsewhere").exists()
        reader = cairn.FileSystemReader(tmp_path / "elsewhere")
        cairn.load({"a": torch.ones(1)}, checkpoint_id=checkpoint, storage_reader=reader)
        assert reader.checkpoint_id == checkpoint

    def test_without_sync(self, checkpoint: Path) -> None:
        cairn.save({"a": torch.ones(1)}, storage_writer=cairn.FileSystemWriter(checkpoint, sync_files=False))
        assert cairn.verify(checkpoint)

    @pytest.mark.parametrize("reads", [cairn.FileSystemReader, stock.dcp.FileSystemReader], ids=["cairn", "torch"])
    @pytest.mark.parametrize("writes", [cairn.FileSystemWriter, stock.dcp.FileSystemWriter], ids=["cairn", "torch"])
    def test_work_with_stock_dcp_too(self, writes: Any, reads: Any, checkpoint: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stock.dcp.save(STATE, storage_writer=writes(checkpoint), no_dist=True)
            state = {"a": {"w": torch.zeros(2, 3)}, "n": 0}
            stock.dcp.load(state, storage_reader=reads(checkpoint), no_dist=True)
        assert_same(state, {"a": {"w": STATE["a"]["w"]}, "n": 3})

    def test_read_metadata(self, checkpoint: Path) -> None:
        stock.save(STATE, checkpoint)
        reader = cairn.FileSystemReader(checkpoint)
        metadata = reader.read_metadata()
        expected = stock.dcp.FileSystemReader(checkpoint).read_metadata()
        assert metadata.state_dict_metadata == expected.state_dict_metadata
        assert metadata.planner_data == expected.planner_data
        assert metadata.storage_data == expected.storage_data
        assert metadata.storage_meta is not None
        assert metadata.storage_meta.load_id == reader.load_id


def test_without_collectives(checkpoint: Path, tmp_path: Path) -> None:
    """test_many_ranks.py covers many ranks."""
    metadata = cairn.save(STATE, checkpoint_id=checkpoint, use_collectives=False)
    names = {path.name for path in checkpoint.iterdir()}
    assert names == {"__0.metadata", "__0_0.distcp"}
    stock.save(STATE, tmp_path / "stock", use_collectives=False)
    assert names == {path.name for path in (tmp_path / "stock").iterdir()}
    assert set(metadata.state_dict_metadata) == {"a.w", "a.s", "n", "l.0", "l.1.x"}
    for load in (cairn.load, stock.dcp.load):
        state = blank(STATE)
        load(state, checkpoint_id=checkpoint, no_dist=True)
        assert_same(state, STATE)


def test_a_world_of_one(checkpoint: Path, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

        values = torch.arange(12.0).reshape(4, 3)
        state: dict[str, Any] = {
            "shard": distribute_tensor(values, mesh, [Shard(0)]),
            "copy": distribute_tensor(values, mesh, [Replicate()]),
            "n": 1,
        }
        cairn.save(state, checkpoint_id=checkpoint)
        for load in (stock.dcp.load, cairn.load):
            loaded: dict[str, Any] = {
                "shard": distribute_tensor(torch.zeros(4, 3), mesh, [Shard(1)]),
                "copy": torch.zeros(4, 3),
                "n": 0,
            }
            load(loaded, checkpoint_id=checkpoint)
            assert isinstance(loaded["shard"], DTensor)
            assert_same(loaded["shard"].to_local(), values)
            assert_same(loaded["copy"], values)
            assert loaded["n"] == 1
    finally:
        dist.destroy_process_group()


class TestOverwrite:
    """The new checkpoint replaces the old checkpoint; foreign files stay."""

    @pytest.mark.parametrize("first", ["cairn", "torch", "torch with many files"])
    def test_replaces_the_whole_checkpoint(self, first: str, checkpoint: Path) -> None:
        if first == "cairn":
            cairn.save({"a": torch.ones(1), "old": 1}, checkpoint_id=checkpoint)
        else:
            writer = stock.dcp.FileSystemWriter(checkpoint, single_file_per_rank=first == "torch")
            stock.save({"a": torch.ones(1), "old": 1}, checkpoint, storage_writer=writer)
        for i in range(3):
            cairn.save({"a": torch.full((2,), float(i))}, checkpoint_id=checkpoint)
            state = {"a": torch.zeros(2)}
            stock.load(state, checkpoint)
            assert_same(state, {"a": torch.full((2,), float(i))})
            assert list(cairn.open(checkpoint)) == ["a"]
            assert sorted(path.name for path in checkpoint.iterdir()) == sorted(
                [".metadata", *cairn.open(checkpoint).files]
            )

    def test_leaves_files_of_others(self, checkpoint: Path) -> None:
        checkpoint.mkdir()
        others = {"common.pt": b"megatron", "meta.pt": b"lightning", "metadata.json": b"{}", "__9_9.distcp": b"whose?"}
        for name, data in others.items():
            (checkpoint / name).write_bytes(data)
        (checkpoint / "folder").mkdir()
        (checkpoint / "folder" / "file").write_bytes(b"deep")
        for i in range(3):
            cairn.save({"a": torch.full((2,), float(i))}, checkpoint_id=checkpoint)
        assert {name: (checkpoint / name).read_bytes() for name in others} == others
        assert (checkpoint / "folder" / "file").read_bytes() == b"deep"
        ours = {".metadata", *cairn.open(checkpoint).files}
        assert {path.name for path in checkpoint.iterdir()} == ours | set(others) | {"folder"}

    def test_stock_torch_can_overwrite_ours(self, checkpoint: Path) -> None:
        cairn.save({"a": torch.ones(1)}, checkpoint_id=checkpoint)
        stock.save({"a": torch.full((1,), 5.0)}, checkpoint)
        state = {"a": torch.zeros(1)}
        cairn.load(state, checkpoint_id=checkpoint)
        assert_same(state, {"a": torch.full((1,), 5.0)})
        cairn.save({"a": torch.full((1,), 6.0)}, checkpoint_id=checkpoint)
        cairn.load(state, checkpoint_id=checkpoint)
        assert_same(state, {"a": torch.full((1,), 6.0)})
