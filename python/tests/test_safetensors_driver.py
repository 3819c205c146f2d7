"""Saves of safetensors models that torch's own driver plans and coordinates, while Cairn's writer writes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Gang
from safetensors.torch import load_file
from sharded_states import assert_whole, names_in, sharded
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader as StockReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter as StockWriter
from torch.distributed.checkpoint.planner import SavePlan

import cairn
from cairn.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

INDEX = "model.safetensors.index.json"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def whole_state(seed: int) -> dict[str, torch.Tensor]:
    return {
        "weight": (torch.arange(4000.0) * seed).reshape(1000, 4),
        "odd": torch.arange(10) + seed,
        "mask": torch.arange(9) % 2 == seed % 2,
        "scalar": torch.tensor(1.5 * seed),
    }


def sharded_state(seed: int) -> dict[str, Any]:
    return sharded(whole_state(seed))


def assert_loads(directory: Path, expected: dict[str, torch.Tensor]) -> None:
    """By Cairn's reader, and by torch's."""
    for reader in (HuggingFaceStorageReader(directory), StockReader(str(directory))):
        target = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
        dcp.load(target, storage_reader=reader, no_dist=True)
        for key, tensor in expected.items():
            assert torch.equal(target[key], tensor), key


def is_checked(directory: Path) -> bool:
    """Whether every byte of the model has a checksum."""
    report = cairn.verify(directory)
    return bool(report.bytes_checked) and not report.bytes_unchecked


def save_alone(directory: Path, state: dict[str, Any], **options: Any) -> None:
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(directory, **options), no_dist=True)


Finish = Callable[[], None]


def begin(directory: Path, seed: int) -> Finish:
    """Carries out the steps of torch's driver up to ``finish``, and returns the call of ``finish``."""
    planner, writer = DefaultSavePlanner(), HuggingFaceStorageWriter(directory)
    planner.set_up_planner(whole_state(seed), None, True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    [plan] = writer.prepare_global_plan(plans)
    results = writer.write_data(planner.finish_plan(plan), planner).wait()
    return lambda: writer.finish(metadata, [results])


def test_of_two_overlapping_saves_the_later_stays(checkpoint: Path) -> None:
    first, second = begin(checkpoint, 1), begin(checkpoint, 2)
    first()
    second()
    assert_loads(checkpoint, whole_state(2))
    assert len(names_in(checkpoint)) == 2
    third, fourth = begin(checkpoint, 3), begin(checkpoint, 4)
    fourth()
    with pytest.raises(cairn.Superseded):
        third()
    del third
    assert_loads(checkpoint, whole_state(4))
    assert len(names_in(checkpoint)) == 2


def test_a_save_in_flight_is_listed_and_the_newest_model_is_found(tmp_path: Path) -> None:
    save_alone(tmp_path / "b", whole_state(1))
    finish = begin(tmp_path / "a", 2)
    for root in (tmp_path, tmp_path / "a"):
        [save] = cairn.saves_in_flight(root)
        assert Path(save.directory) == tmp_path / "a"
        assert [writer.pid for writer in save.writers] == [os.getpid()]
        assert not save.is_leftover
    assert cairn.latest(tmp_path) == str(tmp_path / "b")
    finish()
    assert cairn.saves_in_flight(tmp_path) == ()
    assert cairn.latest(tmp_path) == str(tmp_path / "a")
    assert cairn.latest(tmp_path / "b") == str(tmp_path / "b")


def test_one_process_writes_natively_and_replaces_a_model_in_one_step(checkpoint: Path, fresh_report: None) -> None:
    mapping = {"weight": 1, "odd": 2, "mask": 2, "scalar": 1}
    save_alone(checkpoint, whole_state(1), fqn_to_index_mapping=mapping)
    first = names_in(checkpoint)
    assert first == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX}
    assert is_checked(checkpoint)
    assert_loads(checkpoint, whole_state(1))
    save_alone(checkpoint, whole_state(2), fqn_to_index_mapping=mapping)
    assert names_in(checkpoint) & first == {INDEX}
    assert len(names_in(checkpoint)) == 3
    assert_loads(checkpoint, whole_state(2))
    assert cairn.report().other_calls == 0
    with pytest.raises(CheckpointException, match="lacks the key"):
        save_alone(checkpoint, whole_state(3), fqn_to_index_mapping={"odd": 1})
    assert_loads(checkpoint, whole_state(2))


def test_async_save_of_torch(checkpoint: Path) -> None:
    for seed in (1, 2):
        dcp.async_save(whole_state(seed), storage_writer=HuggingFaceStorageWriter(checkpoint), no_dist=True).result()
        assert is_checked(checkpoint)
        assert_loads(checkpoint, whole_state(seed))
    assert len(names_in(checkpoint)) == 2


def save_together(directory: Path, seed: int, sharded: bool, **options: Any) -> None:
    state = sharded_state(seed) if sharded else whole_state(seed)
    writer = HuggingFaceStorageWriter(directory, save_distributed=sharded, **options)
    dcp.save(state, storage_writer=writer)


def load_together(directory: Path, seed: int) -> None:
    target = {key: torch.zeros_like(tensor) for key, tensor in sharded_state(seed).items()}
    dcp.load(target, storage_reader=HuggingFaceStorageReader(directory))
    assert_whole(target, whole_state(seed))


def test_ranks_save_shards(two: Gang, four: Gang, checkpoint: Path) -> None:
    save = {"sharded": True}
    four.run(call, save_together, (checkpoint, 1), save)
    assert names_in(checkpoint) == {f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in range(1, 5)}
    assert is_checked(checkpoint)
    assert_loads(checkpoint, whole_state(1))
    two.run(load_together, checkpoint, 1)
    with pytest.raises(AssertionError, match="new directory"):
        four.run(call, save_together, (checkpoint, 2), save)
    assert_loads(checkpoint, whole_state(1))
    for seed in (2, 3):  # the shards of a consolidation replace each other
        four.run(call, save_together, (checkpoint / "new", seed), {"sharded": True, "enable_consolidation": True})
        assert len(names_in(checkpoint / "new" / "sharded")) == 4
        assert_loads(checkpoint / "new" / "sharded", whole_state(seed))


def call(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return function(*arguments, **keywords)


def test_the_coordinator_consolidates_the_shards(two: Gang, checkpoint: Path) -> None:
    for seed in (1, 2):
        two.run(call, save_together, (checkpoint, seed), {"sharded": True, "enable_consolidation": True})
        model = next(checkpoint.glob("model-*.safetensors"))
        assert names_in(checkpoint) == {model.name, INDEX, "sharded"}
        found = load_file(model)
        assert all(torch.equal(found[key], tensor) for key, tensor in whole_state(seed).items())


def test_ranks_with_the_same_whole_tensors_write_each_file_once(two: Gang, checkpoint: Path) -> None:
    """torch's planner distributes the tensors over the ranks, and torch's writers overwrite each other's file."""
    two.run(call, save_together, (checkpoint, 1), {"sharded": False})
    assert names_in(checkpoint) == {"model-00001-of-00001.safetensors", INDEX}
    assert_loads(checkpoint, whole_state(1))
    mapping = {"weight": 1, "odd": 2, "mask": 2, "scalar": 1}
    two.run(call, save_together, (checkpoint, 2), {"sharded": False, "fqn_to_index_mapping": mapping})
    assert len(names_in(checkpoint)) == 3
    assert_loads(checkpoint, whole_state(2))


def save_pieces(directory: Path) -> str:
    """Each rank has a tensor of its own, and both belong into one file."""
    state = {f"of_rank_{dist.get_rank()}": torch.ones(3)}
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(directory))
    return str(caught.value)


def test_a_file_that_no_rank_holds_whole_is_refused_with_the_key(two: Gang, checkpoint: Path) -> None:
    for text in two.run(save_pieces, checkpoint):
        assert "no rank holds all tensors of the file whole" in text
        assert "of_rank_" in text
    assert not checkpoint.exists() or not names_in(checkpoint)


class FailsOnRankOne(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        if dist.get_rank() == 1:
            raise RuntimeError("out of memory on this rank")
        return super().resolve_data(write_item)


def save_that_fails(directory: Path) -> str:
    writer = HuggingFaceStorageWriter(directory, save_distributed=True, enable_consolidation=True)
    with pytest.raises(CheckpointException) as caught:
        dcp.save(sharded_state(2), storage_writer=writer, planner=FailsOnRankOne())
    return str(caught.value)


def test_a_failure_of_a_rank_leaves_the_old_model_and_no_files(two: Gang, checkpoint: Path) -> None:
    two.run(call, save_together, (checkpoint, 1), {"sharded": True, "enable_consolidation": True})
    shards = checkpoint / "sharded"
    before = names_in(checkpoint), names_in(shards)
    for text in two.run(save_that_fails, checkpoint):
        assert "out of memory on this rank" in text
    assert (names_in(checkpoint), {name for name in names_in(shards) if name != ".cairn-lock"}) == before
    assert_loads(checkpoint, whole_state(1))
    assert_loads(shards, whole_state(1))


def save_with_cached_plans(directory: Path, sharded: bool) -> None:
    for seed in (1, 2, 3):
        save_state = sharded_state(seed) if sharded else whole_state(seed)
        writer = HuggingFaceStorageWriter(directory / str(seed), save_distributed=sharded)
        dcp.save(save_state, storage_writer=writer, planner=DefaultSavePlanner(enable_plan_caching=True))


@pytest.mark.parametrize("sharded", [True, False])
def test_cached_plans_of_torchs_planner(two: Gang, tmp_path: Path, sharded: bool) -> None:
    two.run(save_with_cached_plans, tmp_path, sharded)
    for seed in (1, 2, 3):
        assert_loads(tmp_path / str(seed), whole_state(seed))


class OwnPlanner(DefaultSavePlanner):
    """Its tensors have another dtype than its plan says."""

    def resolve_data(self, write_item: Any) -> Any:
        data: Any = super().resolve_data(write_item)
        return data.to(torch.bfloat16) if data.dtype == torch.float32 else data


def test_a_planner_of_the_callers_and_a_writer_of_torchs(checkpoint: Path) -> None:
    cairn.save(whole_state(1), storage_writer=StockWriter(str(checkpoint)), planner=OwnPlanner())
    assert is_checked(checkpoint)
    found = load_file(checkpoint / "model-00001-of-00001.safetensors")
    assert found["weight"].dtype == torch.bfloat16
    assert torch.equal(found["odd"], whole_state(1)["odd"])


class OwnPlans(HuggingFaceStorageWriter):
    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return StockWriter.prepare_global_plan(self, plans)


def test_a_subclass_with_its_own_plans_is_written_by_torch(tmp_path: Path) -> None:
    dcp.save(whole_state(1), storage_writer=OwnPlans(tmp_path), no_dist=True)
    assert_loads(tmp_path, whole_state(1))
    assert b"cairn_save_id" not in (tmp_path / INDEX).read_bytes()


def test_a_save_of_each_rank_by_itself_is_refused(tmp_path: Path) -> None:
    writer = HuggingFaceStorageWriter(tmp_path)
    with pytest.raises((cairn.InvalidArgument, CheckpointException), match="use_collectives"):
        dcp.save(whole_state(1), storage_writer=writer, use_collectives=False, no_dist=True)
    assert names_in(tmp_path) == set()
