"""Asynchronous staging while the trainer runs: dropped memory stays alive, and writes to the memory are detected."""

import gc
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from held_tensor import HeldTensor, held
from ranks import Gang
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse

import cairn
from cairn import AsyncCheckpointerType, _engine
from cairn._async import pending_saves
from cairn._state.described import DescribedState
from cairn._state.tensors import TensorTarget
from cairn.checkpointer.staging import CheckpointStagerConfig
from cairn.checkpointer.staging import DefaultStager as RankStager
from cairn.staging import DefaultStager, StagingOptions

__all__ = ["held"]

COUNT = 1 << 18


@pytest.fixture(params=list(AsyncCheckpointerType), ids=lambda kind: kind.value)
def kind(request: pytest.FixtureRequest) -> Any:
    yield request.param
    pending_saves.wait_for()


def save_later(state: dict[str, Any], directory: Path, kind: Any) -> AsyncSaveResponse:
    stager = DefaultStager(StagingOptions(use_async_staging=True))
    response = cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind, async_stager=stager)
    assert isinstance(response, AsyncSaveResponse)
    return response


def loaded(directory: Path, *keys: str) -> dict[str, torch.Tensor]:
    target = {key: torch.empty(COUNT) for key in keys}
    cairn.load(target, checkpoint_id=directory)
    return target


def test_a_parameter_may_be_given_other_memory(checkpoint: Path, kind: Any, held: HeldTensor) -> None:
    parameter = torch.nn.Parameter(torch.rand(COUNT))
    base = torch.rand(2 * COUNT)
    state = {"held": held.tensor, "parameter": parameter, "view": base[COUNT:], "dropped": torch.rand(COUNT)}
    expected = {key: state[key].detach().clone() for key in state if key != "held"}
    response = save_later(state, checkpoint, kind)
    held.wait_until_reached()
    parameter.data = torch.empty(1)
    base.set_(torch.empty(1).untyped_storage())  # type: ignore[arg-type]
    state["view"].data = torch.empty(1)
    del state["dropped"]
    gc.collect()
    garbage = [torch.full((COUNT,), 7.0) for _ in range(16)]
    held.release()
    response.upload_completion.result()
    del garbage
    found = loaded(checkpoint, *expected)
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


def test_an_optimizer_step_before_the_copy_fails_the_save(checkpoint: Path, kind: Any, held: HeldTensor) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    cairn.save({"model": model.state_dict()}, checkpoint_id=checkpoint)
    response = save_later({"held": held.tensor, "model": model.state_dict()}, checkpoint, kind)
    held.wait_until_reached()
    model(torch.rand(8, 64, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    held.release()
    with pytest.raises(cairn.InvalidArgument, match="written to while they were being staged") as failure:
        response.upload_completion.result()
    assert response.staging_completion.exception() is not None
    for key in model.state_dict():
        assert f"'model.{key}'" in str(failure.value)
    assert "'held'" not in str(failure.value)
    assert "held" not in cairn.open(checkpoint)  # the previous checkpoint is in place
    save_later({"model": model.state_dict()}, checkpoint, kind).upload_completion.result()


def save_a_form_that_changes(directory: Path, kind: Any) -> list[str]:
    """Rank 1's state grows at the third save: rank 0's earlier plan fits its own state, but "same" moves to rank 0."""
    rank, wrong = dist.get_rank(), []
    small = COUNT if rank == 0 else 512
    for step, count in enumerate([small, small, COUNT if rank == 0 else 4 * COUNT, small]):
        state = {"same": torch.full((COUNT,), float(step)), f"own.{rank}": torch.full((count,), float(step))}
        save_later(state, directory, kind).upload_completion.result()
        dist.barrier()
        target = {key: torch.empty_like(tensor) for key, tensor in state.items()}
        cairn.load(target, checkpoint_id=directory)
        wrong += [f"{key} of save {step}" for key in state if not torch.equal(target[key], state[key])]
    return wrong


def test_a_form_that_changes_on_one_rank(two: Gang, checkpoint: Path, kind: Any) -> None:
    assert two.run(save_a_form_that_changes, checkpoint, kind) == [[], []]


def test_a_fence_while_the_staging_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    save = pending_saves.PendingSave("", Future(), Future(), None)  # type: ignore[arg-type]
    save.make_wait = lambda streams, seconds: waits.append(streams) is None

    def count_devices_while_the_staging_ends() -> int:
        save.staging.set_result(None)
        save.make_wait = None
        return 1

    monkeypatch.setattr(pending_saves, "current_cuda_streams", lambda: lambda ordinal: 7)
    monkeypatch.setattr(torch.cuda, "device_count", count_devices_while_the_staging_ends)
    pending_saves.Fence(save).result()
    assert waits == [[(0, 7)]]


def test_a_write_after_the_copy_is_harmless(checkpoint: Path, kind: Any, held: HeldTensor) -> None:
    weight = torch.rand(COUNT)
    expected = weight.clone()
    response = save_later({"first": weight, "held": held.tensor}, checkpoint, kind)
    held.wait_until_reached()
    weight.zero_()
    held.release()
    response.upload_completion.result()
    assert torch.equal(loaded(checkpoint, "first")["first"], expected)


def test_the_alarm_may_be_switched_off(checkpoint: Path, held: HeldTensor) -> None:
    saver = cairn.AsyncSaver(process=False, torn_snapshot_alarm=False)
    weight = torch.rand(COUNT)
    save = saver.save({"held": held.tensor, "weight": weight}, checkpoint, asynchronous_staging=True)
    held.wait_until_reached()
    weight.zero_()
    held.release()
    save.upload.result()
    saver.close()
    assert torch.equal(loaded(checkpoint, "weight")["weight"], torch.zeros(COUNT))


def test_bytes_are_compared_and_not_numbers(checkpoint: Path, kind: Any) -> None:
    state = {"nan": torch.full((COUNT,), float("nan")), "odd": torch.rand(64, 48)[1:, ::3].t(), "empty": torch.empty(0)}
    save_later(state, checkpoint, kind).upload_completion.result()
    assert loaded(checkpoint, "nan")["nan"].isnan().all()


def test_a_storage_that_is_resized_fails_the_save(checkpoint: Path, kind: Any, held: HeldTensor) -> None:
    small = torch.arange(8.0)  # the allocator keeps the memory: reading the memory is no fault
    response = save_later({"held": held.tensor, "small": small}, checkpoint, kind)
    held.wait_until_reached()
    small.untyped_storage().resize_(0)
    held.release()
    with pytest.raises(cairn.InvalidArgument, match="'small'"):
        response.upload_completion.result()


def test_the_source_outlives_an_unreferenced_save(checkpoint: Path, held: HeldTensor) -> None:
    """The state after a Ctrl-C between the engine's call and the start of the thread that follows the save."""
    saver = cairn.AsyncSaver(process=False)
    described = DescribedState({"held": held.tensor, "weight": torch.rand(COUNT)})
    terms = (True, True, described, None)
    native = saver._native.save(str(checkpoint).encode(), described.native, terms)
    held.wait_until_reached()
    released = threading.Thread(target=held.release)
    released.start()
    del described, terms, native  # waits for the copying thread
    released.join()
    saver.close()
    assert not checkpoint.exists() or not list(checkpoint.glob("*.metadata"))


def test_a_load_reports_that_its_target_got_other_memory(checkpoint: Path) -> None:
    cairn.save({"weight": torch.rand(COUNT)}, checkpoint_id=checkpoint)
    target = torch.nn.Parameter(torch.zeros(COUNT))
    state = _engine.StateDict()
    targets = TensorTarget(state)
    targets.add(("weight",), target)
    target.data = torch.zeros(COUNT)  # as a second thread might
    _engine.open(str(checkpoint).encode()).load(state)
    with pytest.raises(cairn.InvalidArgument, match="the memory of 'weight' changed during the load"):
        targets.finish(set())


def test_copies_of_a_stager_hold_the_state_at_the_call() -> None:
    """cairn.checkpointer's stager, which copies by torch in a thread for a user's writer."""
    stager = RankStager(CheckpointStagerConfig(use_async_staging=True))
    entered, go_on = threading.Event(), threading.Event()
    first = stager.stage({})  # starts the thread
    assert isinstance(first, Future)
    first.result()
    assert stager._thread is not None
    stager._thread.submit(lambda: (entered.set(), go_on.wait(240)))
    entered.wait(240)
    parameter = torch.nn.Parameter(torch.arange(8.0))
    staged = stager.stage({"p": parameter, "nested": {"p": parameter}})
    parameter.data = torch.zeros(8)
    go_on.set()
    assert isinstance(staged, Future)
    state = staged.result()
    assert torch.equal(state["p"], torch.arange(8.0))
    assert state["nested"]["p"] is state["p"]
    stager.close()
