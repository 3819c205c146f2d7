"""cairn.nvrx: plan, write and finalize by the names of NVRx, on ranks of a gloo group and without CUDA's calls."""

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.utils import _DistWrapper, _get_failure_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from wrapper_tensors import Weight

import cairn
from cairn.nvrx.async_ckpt import filesystem_async, state_dict_saver
from cairn.nvrx.async_ckpt.cached_metadata_filesystem_reader import CachedMetadataFileSystemReader
from cairn.nvrx.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from cairn.nvrx.async_ckpt.filesystem_async import FileSystemWriterAsync
from cairn.nvrx.async_ckpt.state_dict_saver import (
    CheckpointMetadataCache,
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
    verify_global_md_reuse,
)
from cairn.nvrx.megatron_core import save_state_dict_async_plan as plan_for_megatron

WHOLE = torch.arange(48.0).reshape(6, 8)


class DecentralPlanner(DefaultSavePlanner):
    """Plans without a coordinator, as Megatron's planner does."""

    can_run_decentralized_global_plan = True

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)

    def create_decentralized_global_plan(self, local_plan: SavePlan) -> SavePlan:
        return local_plan


def state(step: int, rows: int = 6) -> dict[str, Any]:
    """A tensor in rows, a tensor and a number of all ranks, and a tensor of its own of each rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    matrix = distribute_tensor(WHOLE[:rows] + 100 * step, mesh, [Shard(0)])
    own = {f"own{dist.get_rank()}": torch.full((2,), float(step))}
    return {"w": matrix, "b": torch.full((3,), float(step)), "step": step, **own}


def holds(directory: Path, step: int, rows: int = 6) -> None:
    """Stock torch reads the state of `step`, and Cairn finds no damage."""
    target = {"w": torch.zeros(rows, 8), "b": torch.zeros(3), "step": -1, "own1": torch.zeros(2)}
    stock.load(target, directory)
    assert torch.equal(target["w"], WHOLE[:rows] + 100 * step)
    assert torch.equal(target["b"], torch.full((3,), float(step)))
    assert torch.equal(target["own1"], torch.full((2,), float(step)))
    assert target["step"] == step
    assert not cairn.verify(directory).problems


def planned(
    directory: Path, content: dict[str, Any], cache: CheckpointMetadataCache | None, planner: Any
) -> tuple[AsyncRequest, Any]:
    """The request of a save, whose first finalizer is NVRx's."""
    writer = FileSystemWriterAsync(directory, thread_count=2)
    result = save_state_dict_async_plan(
        content, writer, None, 0, planner=planner, enable_cache=cache is not None, metadata_cache=cache
    )
    write, preload, arguments = writer.get_save_function_and_args()
    request = AsyncRequest(write, arguments, [lambda: save_state_dict_async_finalize(*result)], preload_fn=preload)
    return request, result


def save(
    queue: AsyncCallsQueue,
    directory: Path,
    content: dict[str, Any],
    cache: CheckpointMetadataCache | None = None,
    planner: Any = None,
) -> Any:
    request, result = planned(directory, content, cache, planner or DefaultSavePlanner())
    index = queue.schedule_async_request(request)
    assert queue.maybe_finalize_async_calls(blocking=True) == [index]
    return result


# --- names and signatures


def test_functions_and_classes_have_the_signatures_of_nvrx() -> None:
    theirs = pytest.importorskip("nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver")
    for name in ("save_state_dict_async_plan", "save_state_dict_async_finalize", "verify_global_md_reuse"):
        assert parameters(getattr(state_dict_saver, name)) == parameters(getattr(theirs, name)), name
    for name in ("init_checkpoint_metadata_cache", "get_metadata_caching_status"):
        assert parameters(getattr(state_dict_saver, name)) == parameters(getattr(theirs, name)), name
    for name, method in vars(theirs.CheckpointMetadataCache).items():
        if inspect.isfunction(method):
            assert parameters(getattr(CheckpointMetadataCache, name)) == parameters(method), name
    assert vars(CheckpointMetadataCache()) == vars(theirs.CheckpointMetadataCache())
    assert set(AsyncRequest._fields) == {
        "async_fn", "async_fn_args", "finalize_fns", "async_fn_kwargs", "preload_fn", "is_frozen", "call_idx",
    }  # fmt: skip
    assert filesystem_async._results_queue is None


def parameters(function: Any) -> list[tuple[str, Any]]:
    return [(it.name, it.default) for it in inspect.signature(function).parameters.values()]


# --- the cache of plans


def save_three_times(folder: Path) -> Any:
    queue, cache = AsyncCallsQueue(), CheckpointMetadataCache()
    flags = []
    for step in (1, 2, 3):
        _, metadata, _ = save(queue, folder / f"{step}", state(step), cache)
        assert (metadata is not None) == (dist.get_rank() == 0)
        flags.append(cache.get_metadata_caching_status())
    assert metadata is None or isinstance(metadata.storage_data, dict)
    queue.close()
    return flags


def test_three_saves_with_the_cache(two: Gang, tmp_path: Path) -> None:
    flags = [(False, False), (True, False), (True, False)]
    assert two.run(save_three_times, tmp_path) == [flags, flags]
    for step in (1, 2, 3):
        holds(tmp_path / f"{step}", step)


def save_and_resume(folder: Path) -> Any:
    queue, cache = AsyncCallsQueue(), CheckpointMetadataCache()
    save(queue, folder / "first", state(1), cache, DecentralPlanner())
    resumed = CheckpointMetadataCache()
    resumed.set_cached_global_metadata(cairn.FileSystemReader(folder / "first").read_metadata())
    assert resumed.loaded_all_plans is not None
    flags = []
    gather, _DistWrapper.gather_object = _DistWrapper.gather_object, refuse_gather  # type: ignore[method-assign]
    try:
        for step in (2, 3, 4):
            save(queue, folder / f"{step}", state(step), resumed, DecentralPlanner())
            flags.append(resumed.get_metadata_caching_status())
    finally:
        _DistWrapper.gather_object = gather  # type: ignore[method-assign]
    queue.close()
    return flags


def refuse_gather(*_: Any) -> Any:
    raise AssertionError("plans were gathered")


def test_after_a_restart_no_plans_are_gathered(two: Gang, tmp_path: Path) -> None:
    flags = [(False, True), (True, True), (True, False)]
    assert two.run(save_and_resume, tmp_path) == [flags, flags]
    for step in (2, 3, 4):
        holds(tmp_path / f"{step}", step)
        # The next restart finds the plans, with Cairn and with stock torch.
        plans = stock.metadata_of(tmp_path / f"{step}").all_local_plans
        assert len(plans) == 2
        assert cairn.FileSystemReader(tmp_path / f"{step}").read_metadata().all_local_plans == plans


def resume_with_other_states(folder: Path) -> Any:
    queue, cache = AsyncCallsQueue(), CheckpointMetadataCache()
    save(queue, folder / "first", state(1), cache, DecentralPlanner())
    resumed = CheckpointMetadataCache()
    if dist.get_rank() == 0:  # rank 1 has lost its metadata
        resumed.set_cached_global_metadata(cairn.FileSystemReader(folder / "first").read_metadata())
    save(queue, folder / "2", state(2), resumed, DecentralPlanner())
    flags = [resumed.get_metadata_caching_status()]
    for step, rows in ((3, 6), (4, 6), (5, 4), (6, 4)):  # a validated plan does not fit the fifth save
        save(queue, folder / f"{step}", state(step, rows), resumed, DecentralPlanner())
        flags.append(resumed.get_metadata_caching_status())
    queue.close()
    return flags


def test_ranks_that_differ_and_states_that_change_are_planned_anew_together(two: Gang, tmp_path: Path) -> None:
    flags = [(False, False), (True, False), (True, False), (False, False), (True, False)]
    assert two.run(resume_with_other_states, tmp_path) == [flags, flags]
    for step, rows in ((2, 6), (3, 6), (4, 6), (5, 4), (6, 4)):
        holds(tmp_path / f"{step}", step, rows)


def verify_alone(folder: Path) -> Any:
    wrapper = _DistWrapper(None, True, 0)
    rank = dist.get_rank()
    plans = [SavePlan([], planner_data={"rank": 0}), SavePlan([], planner_data={"rank": 1})]
    return [
        verify_global_md_reuse(loaded, plans[rank], rank, wrapper)
        for loaded in (None, plans[:1], plans, plans if rank else plans[::-1], plans if rank else None)
    ]


def test_reuse_of_loaded_metadata_is_agreed_on(two: Gang, tmp_path: Path) -> None:
    assert two.run(verify_alone, tmp_path) == [[False, False, True, False, False]] * 2


def save_in_megatrons_form(folder: Path) -> Any:
    queue = AsyncCallsQueue()
    kept: Any = None
    loaded = None
    flags = []
    for step in (1, 2, 3, 4):
        writer = FileSystemWriterAsync(folder / f"{step}", thread_count=2)
        if step == 4:  # after a restart
            loaded = cairn.FileSystemReader(folder / "3").read_metadata().all_local_plans
            kept = (None, None, False)
        result, *kept, verified = plan_for_megatron(
            state(step),
            writer,
            None,
            0,
            planner=DecentralPlanner(),
            cached_ckpt_structure=kept,
            loaded_all_plans=loaded,
        )
        write, preload, arguments = writer.get_save_function_and_args()
        AsyncRequest(
            write, arguments, [lambda it=result: save_state_dict_async_finalize(*it)], {}, preload
        ).execute_sync()
        flags.append((kept[2], verified))
    queue.close()
    return flags


def test_megatrons_five_values(two: Gang, tmp_path: Path) -> None:
    flags = [(False, False), (True, False), (True, False), (False, True)]
    assert two.run(save_in_megatrons_form, tmp_path) == [flags, flags]
    for step in (1, 2, 3, 4):
        holds(tmp_path / f"{step}", step)
        assert len(stock.metadata_of(tmp_path / f"{step}").all_local_plans) == 2


# --- the writer by itself, and the reader


def write_by_hand(folder: Path) -> Any:
    """A program with a finalize of its own, as NVRx's: it gathers results, and calls finish()."""
    group = dist.new_group([1, 0])
    writer = FileSystemWriterAsync(folder / "saved")
    _, metadata, wrapper = save_state_dict_async_plan(state(1), writer, group, 1)
    write, preload, arguments = writer.get_save_function_and_args()
    arguments[1] = preload()
    write(*arguments)
    results = writer.retrieve_write_results()
    everything = wrapper.gather_object(results)
    assert (metadata is not None) == wrapper.is_coordinator
    if wrapper.is_coordinator:
        assert not _get_failure_dict(everything)
        writer.finish(metadata, everything)
        assert {result.index.fqn for of_rank in everything for result in of_rank} == set(metadata.state_dict_metadata)
        assert metadata.storage_data.keys() == stock.metadata_of(folder / "saved").storage_data.keys()
    blocked = FileSystemWriterAsync(folder / "file")
    save_state_dict_async_plan(state(1), blocked, group, 1)
    _, preload, _ = blocked.get_save_function_and_args()
    with pytest.raises(cairn.Error, match="make the AsyncCallsQueue after"):
        pickle.dumps(preload)
    assert set(_get_failure_dict([blocked.retrieve_write_results()])) == {0}  # it was never staged
    return {(result.index.fqn, result.size_in_bytes > 0) for result in results}


def test_a_program_may_finalize_by_itself_in_a_group_of_its_own(two: Gang, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    results = two.run(write_by_hand, tmp_path)
    assert {("w", True), ("own0", True)} <= results[0]
    assert {("w", True), ("own1", True)} <= results[1]
    holds(tmp_path / "saved", 1)


def test_the_reader_keeps_the_metadata_until_the_file_is_replaced(tmp_path: Path) -> None:
    cairn.save({"a": torch.ones(2)}, checkpoint_id=tmp_path)
    first = CachedMetadataFileSystemReader(tmp_path).read_metadata()
    assert CachedMetadataFileSystemReader(str(tmp_path), cache_metadata=True).read_metadata() is first
    assert CachedMetadataFileSystemReader(tmp_path, cache_metadata=False).read_metadata() is not first
    CachedMetadataFileSystemReader.clear_metadata_cache(tmp_path)
    again = CachedMetadataFileSystemReader(tmp_path).read_metadata()
    assert again is not first
    cairn.save({"b": torch.ones(2)}, checkpoint_id=tmp_path)
    assert set(CachedMetadataFileSystemReader(tmp_path).read_metadata().state_dict_metadata) == {"b"}
    target = {"b": torch.zeros(2)}
    cairn.load(target, storage_reader=CachedMetadataFileSystemReader(tmp_path))
    assert torch.equal(target["b"], torch.ones(2))


def test_limits_of_the_writer_are_errors_or_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(cairn.Unsupported, match="Multi-Storage Client"):
        FileSystemWriterAsync("msc://profile/path", use_msc=True)
    with pytest.raises(NotImplementedError):
        FileSystemWriterAsync(tmp_path, single_file_per_rank=False)
    FileSystemWriterAsync(
        tmp_path,
        separation_hint="optimizer",
        thread_count=2,
        use_msc=False,
        use_cached_data_structure=True,
        use_cpu_shm_for_gpu_tensors=True,
    )
    assert "separation_hint" in caplog.text
    with pytest.raises(RuntimeError, match="frozen"):
        AsyncRequest(None, (), []).freeze().add_finalize_fn(print)


# --- tensors that only torch reads


def save_wrappers(folder: Path) -> None:
    queue, cache = AsyncCallsQueue(), CheckpointMetadataCache()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for step in (1, 2):
        rows = (WHOLE + step).chunk(2)[dist.get_rank()].clone()
        sharded = DTensor.from_local(Weight(rows), mesh, [Shard(0)], run_check=False)
        save(queue, folder / f"{step}", {"w": sharded, "step": step}, cache)
    queue.close()
    target = DTensor.from_local(Weight(torch.zeros_like(rows)), mesh, [Shard(0)], run_check=False)
    cairn.load({"w": target, "step": 0}, checkpoint_id=folder / "2")
    assert torch.equal(target.to_local().inner, rows)


def test_a_tensor_subclass_is_saved(two: Gang, tmp_path: Path) -> None:
    two.run(save_wrappers, tmp_path)
    for step in (1, 2):
        target = {"w": torch.zeros_like(WHOLE), "step": 0}
        stock.load(target, tmp_path / f"{step}")
        assert torch.equal(target["w"], WHOLE + step)
        assert target["step"] == step
        assert not cairn.verify(tmp_path / f"{step}").problems
