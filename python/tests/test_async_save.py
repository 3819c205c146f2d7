"""cairn.async_save: the state at the call becomes the checkpoint, with saver threads and with the writer process."""

import contextlib
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from held_tensor import HeldTensor, held
from ranks import Gang
from same import assert_same, blank
from saving_programs import no_commit_in
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.staging import DefaultStager as StockDefaultStager
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse

import cairn
from cairn import AsyncCheckpointerType
from cairn._async import pending_saves
from cairn.staging import BlockingAsyncStager, DefaultStager, StagingOptions

__all__ = ["held"]  # a fixture

TYPES = [AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS]


@pytest.fixture(params=TYPES, ids=["thread", "process"])
def kind(request: pytest.FixtureRequest) -> Any:
    yield request.param
    pending_saves.wait_for()


def state_of(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {
            "large": torch.rand(300, 1024, generator=generator),
            "odd": torch.rand(7, 13, generator=generator).t(),
            "half": torch.rand(5, generator=generator).half(),
            "empty": torch.empty(0, 3),
        },
        "optimizer": [{"lr": 0.1 * step, "betas": (0.9, 0.95)}, {"name": "é" * step}],
        "step": step,
    }


def loaded(directory: Path, like: dict[str, Any]) -> dict[str, Any]:
    state = blank(like)
    cairn.load(state, checkpoint_id=directory)
    return state


def test_stock_torch_reads_the_checkpoint(checkpoint: Path, kind: Any) -> None:
    state = state_of(1)
    future = cairn.async_save(state, checkpoint_id=checkpoint, async_checkpointer_type=kind)
    metadata = future.result()
    assert_same(loaded(checkpoint, state), state)
    read = blank(state)
    stock.load(read, checkpoint)
    assert_same(read, state)
    theirs = stock.metadata_of(checkpoint)
    assert metadata.state_dict_metadata == theirs.state_dict_metadata
    assert metadata.storage_data == theirs.storage_data
    assert cairn.verify(checkpoint)


def test_the_saved_state_is_the_state_at_the_call(checkpoint: Path, kind: Any) -> None:
    for step in range(1, 6):
        state = state_of(step)
        future = cairn.async_save(state, checkpoint_id=checkpoint, async_checkpointer_type=kind)
        for tensor in state["model"].values():
            tensor.fill_(-1)
        state["optimizer"][0]["lr"] = -1
        future.result()
        expected = state_of(step)
        assert_same(loaded(checkpoint, expected), expected)


def test_a_state_that_changes_its_form_is_planned_anew(checkpoint: Path, kind: Any) -> None:
    for rows, text in ((10, "a"), (10, "b"), (3000, "b"), (1, "b" * 100_000), (10, "a")):
        state = {"t": torch.rand(rows, 64), "text": text, f"only-{rows}": rows}
        cairn.async_save(state, checkpoint_id=checkpoint, async_checkpointer_type=kind).result()
        assert_same(loaded(checkpoint, state), state)
        assert cairn.verify(checkpoint)


def test_saves_into_two_directories_overlap_and_into_one_keep_their_order(tmp_path: Path, kind: Any) -> None:
    futures = []
    for step in range(1, 9):
        directory = tmp_path / ("odd" if step % 2 else "even")
        futures.append(cairn.async_save(state_of(step), checkpoint_id=directory, async_checkpointer_type=kind))
    for future in futures:
        future.result()
    for step, name in ((7, "odd"), (8, "even")):
        expected = state_of(step)
        assert_same(loaded(tmp_path / name, expected), expected)
        assert not list((tmp_path / name).glob(".cairn-*"))


def test_a_synchronous_save_comes_after_the_asynchronous_saves(checkpoint: Path, kind: Any) -> None:
    future = cairn.async_save(state_of(1), checkpoint_id=checkpoint, async_checkpointer_type=kind)
    cairn.save(state_of(2), checkpoint_id=checkpoint)
    assert future.done()
    expected = state_of(2)
    assert_same(loaded(checkpoint, expected), expected)


def test_a_retrieved_failure_is_reported_once(checkpoint: Path, kind: Any) -> None:
    cairn.async_save(state_of(1), checkpoint_id=checkpoint, async_checkpointer_type=kind).result()
    future = failing_save(checkpoint, kind)
    error = future.exception()
    assert isinstance(error, cairn.Error)
    assert isinstance(error, CheckpointException)
    cairn.async_save(state_of(3), checkpoint_id=checkpoint, async_checkpointer_type=kind).result()
    expected = state_of(3)
    assert_same(loaded(checkpoint, expected), expected)


def test_an_unretrieved_failure_is_raised_once_by_the_next_call(checkpoint: Path, kind: Any) -> None:
    cairn.async_save(state_of(1), checkpoint_id=checkpoint, async_checkpointer_type=kind).result()
    failing_save(checkpoint, kind)
    pending_saves.wait_for()
    with pytest.raises(cairn.Error, match=r"the previous save \(number \d+\), into '.*checkpoint', failed"):
        cairn.async_save(state_of(2), checkpoint_id=checkpoint, async_checkpointer_type=kind)
    assert cairn.open(checkpoint)["of"] == "another"
    cairn.save(state_of(2), checkpoint_id=checkpoint)


def test_each_of_two_failures_is_raised(checkpoint: Path, kind: Any) -> None:
    cairn.async_save(state_of(1), checkpoint_id=checkpoint, async_checkpointer_type=kind).result()
    with no_commit_in(checkpoint):
        for step in (2, 3):
            cairn.async_save(state_of(step), checkpoint_id=checkpoint, async_checkpointer_type=kind)
        stock.save({"of": "another"}, checkpoint)
    pending_saves.wait_for()
    for _ in range(2):
        with pytest.raises(cairn.Error, match="the previous save"):
            cairn.async_save(state_of(4), checkpoint_id=checkpoint, async_checkpointer_type=kind)
    cairn.async_save(state_of(4), checkpoint_id=checkpoint, async_checkpointer_type=kind).result()


def test_a_failure_does_not_hide_the_failure_of_a_save_in_flight(checkpoint: Path, kind: Any) -> None:
    cairn.async_save(state_of(1), checkpoint_id=checkpoint, async_checkpointer_type=kind).result()
    failing_save(checkpoint, kind)
    pending_saves.wait_for()
    other = checkpoint.with_name("other")
    with pytest.raises(cairn.Error, match="the previous save"):
        cairn.async_save(state_of(2), checkpoint_id=other, async_checkpointer_type=kind)
    failing_save(checkpoint, kind)
    pending_saves.wait_for()
    with pytest.raises(cairn.Error, match="the previous save"):
        cairn.save(state_of(2), checkpoint_id=other)


@pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_warning_raised_as_an_error_does_not_keep_the_future_pending(checkpoint: Path, kind: Any) -> None:
    checkpoint.mkdir()
    (checkpoint / "__7.metadata").write_bytes(b"no pickle")
    future = cairn.async_save(state_of(1), checkpoint_id=checkpoint, async_checkpointer_type=kind)
    assert future.result(240).state_dict_metadata


def failing_save(checkpoint: Path, kind: Any) -> "Future[Any]":
    """Starts a save over a checkpoint; a stock checkpoint replaces it before the commit. Returns the future."""
    with no_commit_in(checkpoint):
        future = cairn.async_save(state_of(2), checkpoint_id=checkpoint, async_checkpointer_type=kind)
        stock.save({"of": "another"}, checkpoint)
    return future


def test_an_asynchronous_staging_has_a_future_of_its_own(checkpoint: Path, kind: Any) -> None:
    stager = DefaultStager(StagingOptions(use_async_staging=True))
    for step in (1, 2):
        state = state_of(step)
        response = cairn.async_save(state, checkpoint_id=checkpoint, async_checkpointer_type=kind, async_stager=stager)
        assert isinstance(response, AsyncSaveResponse)
        response.staging_completion.result()
        stager.synchronize_staging()
        for tensor in state["model"].values():
            tensor.fill_(-1)
        response.upload_completion.result()
        expected = state_of(step)
        assert_same(loaded(checkpoint, expected), expected)
    stager.close()


def test_the_fence_holds_the_optimizer_back_until_the_bytes_are_copied(
    checkpoint: Path, kind: Any, held: HeldTensor
) -> None:
    parameter = torch.nn.Parameter(torch.zeros(8 << 20))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    handle = cairn.staging_fence(optimizer)
    stager = DefaultStager(StagingOptions(use_async_staging=True))
    parameter.grad = torch.full_like(parameter, -1.0)
    for step in range(3):
        state = {"p": parameter, "held": held.tensor}
        response = cairn.async_save(state, checkpoint_id=checkpoint, async_checkpointer_type=kind, async_stager=stager)
        if step == 0:
            held.wait_until_reached()
        trainer = threading.Thread(target=optimizer.step)
        trainer.start()
        if step == 0:  # the copy waits for the held tensor
            trainer.join(0.1)
            assert trainer.is_alive()
            assert not parameter.any()
            held.release()
        trainer.join()
        assert response.staging_completion.done()
        response.upload_completion.result()
        target = {"p": torch.empty(8 << 20)}
        cairn.load(target, checkpoint_id=checkpoint)
        assert torch.equal(target["p"], torch.full((8 << 20,), float(step)))
    handle.remove()


@pytest.mark.parametrize(
    "stager",
    [BlockingAsyncStager(), BlockingAsyncStager(True), StockDefaultStager(StagingOptions(False, False, False, False))],
    ids=["blocking", "cached", "stock"],
)
def test_one_stager_serves_overlapping_saves(tmp_path: Path, kind: Any, stager: Any) -> None:
    futures = []
    for step in (1, 2, 3):
        state = state_of(step)
        directory = tmp_path / str(step)
        futures.append(
            cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind, async_stager=stager)
        )
    for step, future in enumerate(futures, 1):
        future.result()
        expected = state_of(step)
        assert_same(loaded(tmp_path / str(step), expected), expected)


class Doubling(AsyncStager):
    """A user-defined stager. The saved state is twice the given state."""

    def __init__(self, later: bool) -> None:
        self.later = later
        self.calls: list[str] = []

    def stage(self, state_dict: dict[str, Any]) -> Any:
        self.calls.append("stage")
        staged = {key: value * 2 for key, value in state_dict.items()}
        if not self.later:
            return staged
        future: Future[Any] = Future()
        threading.Timer(0.05, future.set_result, [staged]).start()
        return future

    def synchronize_staging(self) -> None:
        self.calls.append("synchronize")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize("later", [False, True])
def test_a_stager_of_the_users_own(checkpoint: Path, kind: Any, later: bool) -> None:
    stager = Doubling(later)
    state = {"t": torch.arange(10.0)}
    told = cairn.async_save(state, checkpoint_id=checkpoint, async_checkpointer_type=kind, async_stager=stager)
    assert isinstance(told, AsyncSaveResponse) == later
    (told.upload_completion if later else told).result()
    target = {"t": torch.empty(10)}
    cairn.load(target, checkpoint_id=checkpoint)
    assert torch.equal(target["t"], torch.arange(10.0) * 2)
    assert stager.calls == (["stage"] if later else ["stage", "synchronize"])


class Late(AsyncStager):
    """A stager that starts to fill its buffers in `stage` and has filled the buffers after `synchronize_staging`."""

    def __init__(self) -> None:
        self.work: list[tuple[torch.Tensor, torch.Tensor]] = []

    def stage(self, state_dict: dict[str, Any]) -> Any:
        staged = {key: torch.full_like(value, float("nan")) for key, value in state_dict.items()}
        self.work = [(staged[key], value) for key, value in state_dict.items()]
        return staged

    def synchronize_staging(self) -> None:
        for buffer, value in self.work:
            buffer.copy_(value)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("planner", [None, DefaultSavePlanner], ids=["native", "torch's planning"])
def test_a_stager_that_finishes_at_synchronisation(checkpoint: Path, kind: Any, planner: Any) -> None:
    class Mine(DefaultSavePlanner):
        """A planner that makes Cairn follow torch's planning protocol."""

        def create_local_plan(self) -> Any:
            return super().create_local_plan()

    state = {"t": torch.arange(10.0)}
    options = {"planner": Mine()} if planner else {}
    cairn.async_save(
        state, checkpoint_id=checkpoint, async_checkpointer_type=kind, async_stager=Late(), **options
    ).result()
    target = {"t": torch.empty(10)}
    cairn.load(target, checkpoint_id=checkpoint)
    assert torch.equal(target["t"], torch.arange(10.0))


def test_writers_and_planners_as_of_save(checkpoint: Path, kind: Any) -> None:
    class Mine(cairn.DefaultSavePlanner):
        """A class of the caller's."""

    state = state_of(1)
    writer = cairn.FileSystemWriter(checkpoint, single_file_per_rank=False)
    cairn.async_save(state, storage_writer=writer, async_checkpointer_type=kind).result()
    assert len(list(checkpoint.glob("*.distcp"))) > 4
    cairn.async_save(state_of(2), checkpoint_id=checkpoint, planner=Mine(), async_checkpointer_type=kind).result()
    expected = state_of(2)
    assert_same(loaded(checkpoint, expected), expected)
    with pytest.raises(cairn.InvalidArgument, match="overwrite"):
        cairn.async_save(
            state, storage_writer=cairn.FileSystemWriter(checkpoint, overwrite=False), async_checkpointer_type=kind
        )


def test_an_unsupported_value_is_refused_by_the_call(checkpoint: Path, kind: Any) -> None:
    with pytest.raises(cairn.Error, match="meta"):
        cairn.async_save({"t": torch.empty(3, device="meta")}, checkpoint_id=checkpoint, async_checkpointer_type=kind)
    assert not checkpoint.exists() or not list(checkpoint.iterdir())


def test_progress_reaches_the_end(checkpoint: Path, kind: Any) -> None:
    future: Any = cairn.async_save(state_of(1), checkpoint_id=checkpoint, async_checkpointer_type=kind)
    progress = future.progress()
    assert progress.phase not in ("staging", "")  # the call has staged everything
    assert progress.bytes_total > 300 * 1024 * 4
    future.result()
    assert future.progress().phase == "ended"
    assert future.progress().bytes_written >= sum(path.stat().st_size for path in checkpoint.glob("*.distcp"))
    assert future.progress().bytes_written == future.progress().bytes_total


def test_a_save_after_prepare_async_saves(checkpoint: Path, kind: Any) -> None:
    state = state_of(1)
    cairn.prepare_async_saves(state, kind).result()
    cairn.async_save(state, checkpoint_id=checkpoint, async_checkpointer_type=kind).result()
    assert_same(loaded(checkpoint, state), state)


def test_a_callers_own_saver(checkpoint: Path) -> None:
    saver = cairn.AsyncSaver(process=True, generations=1, nice=5, io_priority="idle", heed_memory_limits=False)
    save = saver.save(state_of(1), checkpoint, alone_as_rank=3)
    pid = saver.writer_pid
    assert pid is not None
    assert save.upload.result().state_dict_metadata
    group = Path(f"/proc/{pid}/autogroup")  # some kernels lack the file
    until = time.monotonic() + 240
    while group.exists() and group.read_text() and not group.read_text().endswith(" nice 5\n"):
        assert time.monotonic() < until, group.read_text()
        saver.save(state_of(2), checkpoint, alone_as_rank=3).upload.result()  # the kernel limits how often nice changes
    assert (checkpoint / "__3.metadata").exists()
    saver.close()
    assert not Path(f"/proc/{pid}").exists()


# --- many ranks


def save_shards(directory: Path, kind: Any, steps: int) -> list[bool]:
    """Saves rows of a table. Returns whether this rank has the metadata of each of the last two saves."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    futures = []
    for step in range(1, steps + 1):
        table = torch.full((2 * size, 5), float(rank * 100 + step))
        shard = dist.tensor.DTensor.from_local(table[:2], mesh, [dist.tensor.Shard(0)])
        state = {"table": shard, "replica": torch.full((8,), float(step)), "step": step}
        where = directory if step % 2 else directory.with_name("other")
        futures.append(cairn.async_save(state, checkpoint_id=where, async_checkpointer_type=kind))
        table.fill_(-1)
        dist.barrier()  # of the trainer's own, on the same group, while saves are under way
    return ["table" in future.result().state_dict_metadata for future in futures[-2:]]


def test_many_ranks_overlap_on_one_process_group(three: Gang, checkpoint: Path, kind: Any) -> None:
    assert three.run(save_shards, checkpoint, kind, 5) == [[True, True]] * 3
    target = {"table": torch.empty(6, 5), "replica": torch.empty(8), "step": 0}
    cairn.load(target, checkpoint_id=checkpoint)
    assert target["table"][:, 0].tolist() == [5.0, 5.0, 105.0, 105.0, 205.0, 205.0]
    assert target["step"] == 5
    assert cairn.verify(checkpoint)
    assert not list(checkpoint.parent.glob("*/.cairn-*"))


def save_but_one_has_no_state(directory: Path, kind: Any) -> tuple[str, list[int]]:
    class Broken:
        def state_dict(self) -> dict[str, Any]:
            if dist.get_rank() == 1:
                raise RuntimeError("no state today")
            return {"t": torch.ones(3)}

        def load_state_dict(self, _: dict[str, Any]) -> None: ...

    try:
        cairn.async_save({"broken": Broken()}, checkpoint_id=directory, async_checkpointer_type=kind)
    except CheckpointException as error:
        told = str(error), sorted(error.failures)
    else:
        told = "", []
    cairn.async_save({"t": torch.ones(3)}, checkpoint_id=directory, async_checkpointer_type=kind).result()
    return told


def test_a_rank_without_a_state_fails_the_call_of_all(three: Gang, checkpoint: Path, kind: Any) -> None:
    for message, failed in three.run(save_but_one_has_no_state, checkpoint, kind):
        assert "no state today" in message
        assert failed == [1]
    assert cairn.verify(checkpoint)


def save_into_what_is_taken_away(directory: Path, kind: Any) -> tuple[list[int], str]:
    """Every rank's files are ready, but a foreign save commits first. The next call raises the error on every rank."""
    state = {"t": torch.ones(30), "own": {dist.get_rank(): torch.ones(5)}}
    cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind).result()
    with no_commit_in(directory) if dist.get_rank() == 0 else contextlib.nullcontext():
        dist.barrier()
        cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind)
        if dist.get_rank() == 0:
            stock.save({"of": "another"}, directory)
    pending_saves.wait_for()
    dist.barrier()
    try:
        cairn.save(state, checkpoint_id=directory)
    except CheckpointException as error:
        failed, text = sorted(error.failures), str(error)
    else:
        failed, text = [], ""
    cairn.save({"after": 1}, checkpoint_id=directory)
    return failed, text


def test_a_failure_is_raised_by_the_next_call_of_every_rank(three: Gang, checkpoint: Path, kind: Any) -> None:
    for failed, text in three.run(save_into_what_is_taken_away, checkpoint, kind):
        assert failed
        assert "the previous save" in text
    assert cairn.open(checkpoint)["after"] == 1


class Planner(cairn.DefaultSavePlanner):
    """A subclass of the caller's with its own hook: torch's planning runs."""

    def finish_plan(self, new_plan: Any) -> Any:
        return super().finish_plan(new_plan)


def save_by_a_planner(directory: Path, kind: Any) -> list[int]:
    futures = []
    for step in range(1, 5):
        state = {"t": torch.full((5,), float(step)), "own": {dist.get_rank(): torch.full((3,), float(step))}}
        futures.append(
            cairn.async_save(state, checkpoint_id=directory, planner=Planner(), async_checkpointer_type=kind)
        )
        dist.barrier()  # of the trainer's own, while saves are under way
    return [len(future.result().state_dict_metadata) for future in futures]


def test_saves_by_a_planner_of_the_users_own_come_one_after_another(three: Gang, checkpoint: Path, kind: Any) -> None:
    assert three.run(save_by_a_planner, checkpoint, kind) == [[4] * 4] * 3
    opened = cairn.open(checkpoint)
    assert opened["t"].tolist() == [4.0] * 5
    assert opened["own.2"].tolist() == [4.0] * 3
    assert cairn.verify(checkpoint)


class FailingOnOne(Doubling):
    """Stages on all ranks but rank 1."""

    def stage(self, state_dict: dict[str, Any]) -> Any:
        if dist.get_rank() == 1:
            raise RuntimeError("no room to stage")
        return super().stage(state_dict)


def save_by_a_stager_that_fails_on_one(directory: Path, kind: Any, later: bool) -> tuple[str, list[int]]:
    state = {"t": torch.ones(3)}
    try:
        cairn.async_save(state, checkpoint_id=directory, async_stager=FailingOnOne(later), async_checkpointer_type=kind)
    except CheckpointException as error:
        told = str(error), sorted(error.failures)
    else:
        told = "", []
    cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind).result()
    return told


@pytest.mark.parametrize("later", [False, True])
def test_a_stager_that_fails_on_one_rank_fails_the_call_of_all(
    three: Gang, checkpoint: Path, kind: Any, later: bool
) -> None:
    for text, failed in three.run(save_by_a_stager_that_fails_on_one, checkpoint, kind, later):
        assert "no room to stage" in text
        assert failed == [1]


class FailingLater(Doubling):
    """Stages in the background, on all ranks but rank 1."""

    def stage(self, state_dict: dict[str, Any]) -> Any:
        if dist.get_rank() != 1:
            return super().stage(state_dict)
        future: Future[Any] = Future()
        future.set_exception(RuntimeError("no room to stage"))
        return future


def save_by_a_stager_that_fails_later(directory: Path, kind: Any) -> list[tuple[str, str, list[int]]]:
    """Two saves fail; a third succeeds. Returns, for each failed save, how staging and the save ended on this rank."""
    state = {"t": torch.ones(3), f"own{dist.get_rank()}": torch.ones(2)}
    told = []
    for stager in (FailingLater(True), FailingLater(True), Doubling(True)):
        response: Any = cairn.async_save(
            state, checkpoint_id=directory, async_stager=stager, async_checkpointer_type=kind
        )
        staging, failure = response.staging_completion.exception(240), response.upload_completion.exception(240)
        told.append((str(staging), str(failure), sorted(failure.failures) if failure else []))
    assert told.pop() == ("None", "None", [])
    return told


def test_a_stager_that_fails_on_one_rank_later_fails_the_futures_of_all(
    three: Gang, checkpoint: Path, kind: Any
) -> None:
    for rank, told in enumerate(three.run(save_by_a_stager_that_fails_later, checkpoint, kind)):
        for staging, text, failed in told:
            assert staging == ("no room to stage" if rank == 1 else "None")
            assert "no room to stage" in text
            assert failed == [1]
    assert cairn.open(checkpoint)["own2"].tolist() == [2.0, 2.0]
    assert cairn.verify(checkpoint)
