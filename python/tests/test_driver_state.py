"""After a save or load, the given planners, writers and readers have the attributes that torch's driver sets."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from stock import dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import cairn
from cairn._results.lazy_dict import LazyDict


def sample() -> dict[str, Any]:
    return {"model": {"w": torch.arange(12.0).reshape(3, 4), "b": torch.arange(7)}, "step": 3, "l": [torch.ones(2), 5]}


def blank(**more: Any) -> dict[str, Any]:
    return {"model": {"w": torch.ones(3, 4), "b": torch.ones(7).long()}, "step": 0, "l": [torch.zeros(2), 0], **more}


def described(planner: Any) -> dict[str, Any]:
    """Returns the comparable attributes of a planner."""
    return {
        "mappings": planner.mappings,
        "keys": sorted(planner.state_dict),
        "shapes": {key: value.shape for key, value in planner.state_dict.items() if isinstance(value, torch.Tensor)},
        "saved": {key: type(value).__name__ for key, value in sorted(planner.metadata.state_dict_metadata.items())},
        "is_coordinator": planner.is_coordinator,
    }


@pytest.mark.parametrize("flatten", [True, False])
def test_planners_hold_the_attributes_that_stock_torch_sets(flatten: bool, checkpoint: Path, tmp_path: Path) -> None:
    savers = [DefaultSavePlanner(flatten_state_dict=flatten) for _ in range(2)]
    state = sample() if flatten else {"w": torch.ones(3), "step": 3}
    stock.save(state, tmp_path / "stock", planner=savers[0])
    cairn.save(state, checkpoint_id=checkpoint, planner=savers[1])
    assert described(savers[1]) == described(savers[0])
    for name, tensor in savers[0].state_dict.items():
        assert savers[1].state_dict[name] is tensor

    loaders = [DefaultLoadPlanner(flatten_state_dict=flatten) for _ in range(2)]
    states = [blank() if flatten else {"w": torch.zeros(3), "step": 0} for _ in range(2)]
    stock.load(states[0], tmp_path / "stock", planner=loaders[0])
    cairn.load(states[1], checkpoint_id=tmp_path / "stock", planner=loaders[1])
    assert described(loaders[1]) == described(loaders[0])
    assert loaders[1].metadata.storage_data == loaders[0].metadata.storage_data
    for name in ("w",) if not flatten else ("model.w", "l.0"):
        assert torch.equal(loaders[1].state_dict[name], loaders[0].state_dict[name])
    assert sorted(loaders[1].original_state_dict) == sorted(loaders[0].original_state_dict)


def test_a_load_planner_holds_the_metadata_of_a_load_that_failed(checkpoint: Path) -> None:
    stock.save(sample(), checkpoint)
    planner = DefaultLoadPlanner()
    with pytest.raises(cairn.MissingKey):
        cairn.load(blank(new=torch.ones(1)), checkpoint_id=checkpoint, planner=planner)
    assert "model.w" in planner.metadata.state_dict_metadata


def test_the_planner_of_a_meta_tensor_holds_the_loaded_one(checkpoint: Path) -> None:
    stock.save({"w": torch.arange(4.0)}, checkpoint)
    planner = DefaultLoadPlanner()
    state = {"w": torch.empty(4, device="meta")}
    cairn.load(state, checkpoint_id=checkpoint, planner=planner)
    assert planner.state_dict["w"] is state["w"]
    assert torch.equal(state["w"], torch.arange(4.0))


@pytest.mark.parametrize("reader", [dcp.FileSystemReader, cairn.FileSystemReader])
def test_a_reader_holds_the_attributes_that_stock_torch_sets(reader: Any, checkpoint: Path) -> None:
    stock.save(sample(), checkpoint)
    theirs, ours = dcp.FileSystemReader(checkpoint), reader(checkpoint)
    planner = DefaultLoadPlanner()
    dcp.load(blank(), storage_reader=theirs, no_dist=True)
    cairn.load(blank(), storage_reader=ours, planner=planner)
    assert ours.storage_data == theirs.storage_data
    assert pickle.loads(pickle.dumps(ours)).storage_data == theirs.storage_data
    assert (ours.rank, ours.use_collectives) == (theirs.rank, theirs.use_collectives)
    storage_meta = planner.metadata.storage_meta
    assert storage_meta is not None
    assert storage_meta.load_id == ours.load_id


def save_ids(directory: Path, name: str = ".metadata") -> tuple[str, str]:
    """Returns the save id in DCP's metadata, and the save id in the engine's commit record."""
    written = pickle.loads((directory / name).read_bytes()).storage_meta.save_id
    return written, cairn._engine.open(str(directory).encode(), name).save_id or ""


@pytest.mark.parametrize("writer", [dcp.FileSystemWriter, cairn.FileSystemWriter])
@pytest.mark.parametrize("kind", ["save", "thread", "process", "by protocol"])
def test_the_save_id_of_a_writer_is_the_one_that_was_written(writer: Any, kind: str, checkpoint: Path) -> None:
    given = writer(checkpoint)
    planner: Any = DefaultSavePlanner()
    if kind in ("save", "by protocol"):
        planner = type("Mine", (DefaultSavePlanner,), {"finish_plan": DefaultSavePlanner.finish_plan})()
        cairn.save(sample(), storage_writer=given, planner=planner if kind == "by protocol" else None)
    else:
        cairn.async_save(
            sample(), storage_writer=given, planner=planner, async_checkpointer_type=AsyncCheckpointerType(kind)
        ).result()  # type: ignore[union-attr]
        assert planner.mappings["model.w"] == ("model", "w")
        assert "model.w" in planner.metadata.state_dict_metadata
    written, committed = save_ids(checkpoint)
    assert given.save_id == written
    assert given.storage_meta().save_id == written
    assert written.replace("-", "") == committed


def _save_alone(directory: str) -> tuple[str, bool]:
    writer = cairn.FileSystemWriter(directory)
    planner = DefaultSavePlanner()
    cairn.save({"w": torch.ones(3)}, storage_writer=writer, planner=planner, use_collectives=False)
    written, _ = save_ids(Path(directory), f"__{dist.get_rank()}.metadata")
    assert (writer.rank, writer.use_collectives) == (dist.get_rank(), False)
    return writer.save_id, writer.save_id == written


def _save_together(directory: str) -> tuple[str, bool]:
    writer = cairn.FileSystemWriter(directory)
    planner = DefaultSavePlanner()
    cairn.save({"w": torch.ones(3)}, storage_writer=writer, planner=planner)
    written, _ = save_ids(Path(directory))
    assert planner.is_coordinator == (dist.get_rank() == 0)
    assert "w" in planner.metadata.state_dict_metadata
    return writer.save_id, writer.save_id == written


def test_two_ranks_of_one_save_hold_one_save_id(two: Gang, tmp_path: Path) -> None:
    together = two.run(_save_together, str(tmp_path / "together"))
    assert together[0] == together[1]
    alone = two.run(_save_alone, str(tmp_path / "alone"))
    assert alone[0][0] != alone[1][0]
    assert all(is_written for _, is_written in (*together, *alone))


# --- texts that callers of DCP match


def stock_text(call: Any) -> str:
    """Returns the text of the error that the first failed rank of a stock call raised."""
    with pytest.raises(dcp.CheckpointException) as caught:
        call()
    return str(caught.value.failures[0][0])


def test_a_missing_key_and_a_wrong_size_have_the_texts_of_stock_torch(checkpoint: Path) -> None:
    stock.save(sample(), checkpoint)
    wrong: list[dict[str, Any]] = [blank(new=torch.ones(1)), blank(step2=0), {"model": {"w": torch.ones(2, 4)}}]
    for state in wrong:
        theirs = stock_text(lambda state=state: stock.load(state, checkpoint))
        with pytest.raises(dcp.CheckpointException) as caught:
            cairn.load(state, checkpoint_id=checkpoint)
        words = theirs.partition(" for ")[0].rstrip(".")
        assert str(caught.value).startswith(words)
        assert words.startswith(("Missing key in checkpoint state_dict: ", "Size mismatch between saved torch.Size"))


def test_a_forbidden_overwrite_has_the_text_of_stock_torch(checkpoint: Path) -> None:
    stock.save(sample(), checkpoint)
    theirs = stock_text(
        lambda: dcp.save(sample(), storage_writer=dcp.FileSystemWriter(checkpoint, overwrite=False), no_dist=True)
    )
    for writer in (dcp.FileSystemWriter, cairn.FileSystemWriter):
        with pytest.raises(dcp.CheckpointException, match=r"^Checkpoint already exists and ") as caught:
            cairn.save(sample(), storage_writer=writer(checkpoint, overwrite=False))
    assert theirs.startswith("Checkpoint already exists and ")
    assert caught.value.file == ".metadata"  # type: ignore[attr-defined]


# --- LazyDict


def test_a_lazy_dict_is_made_once_by_its_first_use() -> None:
    uses: list[Any] = [
        len,
        list,
        dict,
        repr,
        bool,
        lambda lazy: lazy == {"a": 1},
        lambda lazy: {**lazy},
        lambda lazy: lazy | {},
        lambda lazy: {} | lazy,
        lambda lazy: lazy["a"],
        lambda lazy: "a" in lazy,
        lambda lazy: lazy.get("a"),
        lambda lazy: lazy.items(),
        lambda lazy: pickle.loads(pickle.dumps(lazy)),
        lambda lazy: list(reversed(lazy)),
    ]
    for use in uses:
        made: list[int] = []

        def make(made: list[int] = made) -> dict[str, int]:
            made.append(1)
            return {"a": 1}

        lazy = LazyDict(make)
        assert not made
        assert use(lazy) == use({"a": 1}) or use(lazy) == use({"a": 1}.copy()) or list(use(lazy)) == list(use({"a": 1}))
        assert lazy == {"a": 1}
        assert len(made) == 1


def test_a_lazy_dict_that_could_not_be_made_is_tried_again() -> None:
    answers = [OSError("gone"), {"a": 1}]

    def make() -> dict[str, int]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    lazy = LazyDict(make)
    with pytest.raises(OSError, match="gone"):
        len(lazy)
    assert lazy == {"a": 1}
