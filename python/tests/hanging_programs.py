"""Programs for test_hanging_storage.py, which preloads the library of hanging.py. Arguments: NAME FOLDER."""

import gc
import logging
import logging.handlers
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import cairn
import cairn.checkpointer

FOLDER = Path(sys.argv[2])
SECONDS = 1.0  # of the deadline under test
SECONDS_OF_A_SLOW_CALL = 4.0  # on a busy machine a call that does not hang takes less
PROCESS = cairn.AsyncCheckpointerType.PROCESS


def hang(call: str = "pwrite") -> Path:
    """Makes `call` hang in this process, and in writers started later, until the returned file is removed."""
    block = FOLDER / f"hang-{os.environ.get('RANK', '0')}"
    reached_by(block).unlink(missing_ok=True)
    block.touch()
    os.environ["HANG"] = f"{call}:{block}"
    return block


def reached_by(block: Path) -> Path:
    """Returns the file that exists once a call hangs."""
    return block.with_name(f"{block.name}.reached")


def wait_until_reached(block: Path) -> None:
    while not reached_by(block).exists():
        time.sleep(0.01)


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((1_000_000,), float(step)), "step": step}


def loaded_step(directory: Path) -> int:
    found = {"w": torch.zeros(1_000_000), "step": -1}
    cairn.load(found, checkpoint_id=directory, no_dist=True)
    assert torch.equal(found["w"], torch.full((1_000_000,), float(found["step"])))
    return int(found["step"])


def save_when_possible(directory: Path, step: int) -> None:
    """Saves as soon as a hung thread has returned and released its memory."""
    for _ in range(1000):
        try:
            cairn.async_save(state(step), checkpoint_id=directory).result()
        except cairn.Unavailable:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("no save works any more")


def third() -> None:
    """One rank, threads: a third save waits for memory held by hung saves and raises; later saves work."""
    cairn.configure_async_saves(deadline_seconds=SECONDS)
    directory = FOLDER / "checkpoint"
    cairn.async_save(state(1), checkpoint_id=directory).result()
    block = hang()
    futures = [cairn.async_save(state(2), checkpoint_id=directory), cairn.async_save(state(3), checkpoint_id=directory)]
    try:
        cairn.async_save(state(4), checkpoint_id=directory)
    except cairn.Unavailable as error:
        assert "hang" in str(error), error
    else:
        raise AssertionError("the third call did not raise")
    for future in futures:
        assert isinstance(future.exception(), cairn.Unavailable), future.exception()
    assert loaded_step(directory) == 1
    block.unlink()
    save_when_possible(directory, 5)
    assert loaded_step(directory) == 5
    assert not list(directory.glob(".cairn-*")), list(directory.iterdir())


def link() -> None:
    """A directory behind a hanging link: the calls return, and the saves continue under the unresolved name."""
    (FOLDER / "checkpoint").mkdir()
    link = FOLDER / "name.link"
    link.symlink_to("checkpoint")
    cairn.configure_async_saves(publish_deadline_seconds=SECONDS)
    block = hang("readlink")
    for kind in (cairn.AsyncCheckpointerType.THREAD, PROCESS):
        cairn.async_save(state(1), checkpoint_id=link, async_checkpointer_type=kind).result()
        assert block.exists()  # the saves did not wait for the link
    block.unlink()
    assert loaded_step(FOLDER / "checkpoint") == 1


def exit_early() -> None:
    """The interpreter ends although a thread hangs."""
    cairn.configure_async_saves(deadline_seconds=SECONDS)
    hang()
    cairn.async_save(state(2), checkpoint_id=FOLDER / "checkpoint")


def is_seen_syncing(directory: Path) -> bool:
    """Whether `saves_in_flight` reports the sync after a heartbeat: the phase, the bytes and the pending call."""
    (save,) = cairn.saves_in_flight(directory)
    (writer,) = save.writers
    assert save.is_readable and writer.is_readable and writer.state == "alive"
    if writer.progress is None or writer.progress.phase != "syncing":
        return False
    assert writer.progress.bytes_written == writer.progress.bytes_total > 4_000_000
    assert "sync" in writer.pending_call and writer.seconds_without_progress > 0
    return True


def long_sync() -> None:
    """An fsync that takes longer than the deadline of a write."""
    cairn.configure_async_saves(deadline_seconds=SECONDS_OF_A_SLOW_CALL, sync_deadline_seconds=1000)
    block = hang("fsync")
    future = cairn.async_save(state(2), checkpoint_id=FOLDER / "checkpoint")
    wait_until_reached(block)
    start = time.monotonic()
    while (
        future.progress().phase != "syncing"  # type: ignore[attr-defined]
        or not is_seen_syncing(FOLDER / "checkpoint")
        or time.monotonic() < start + SECONDS_OF_A_SLOW_CALL + SECONDS
    ):
        assert not future.done()
        time.sleep(0.01)
    block.unlink()
    future.result()
    assert loaded_step(FOLDER / "checkpoint") == 2


def ranks() -> None:
    """Two ranks: the writes of each rank hang in turn."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{FOLDER / 'store'}", rank=rank, world_size=2)
    cairn.configure_async_saves(deadline_seconds=SECONDS)
    directory = FOLDER / "checkpoint"
    cairn.async_save(mine(1), checkpoint_id=directory).result()
    for stuck in (0, 1):
        block = hang() if rank == stuck else None
        future = cairn.async_save(mine(2), checkpoint_id=directory)
        error = future.exception()
        assert isinstance(error, cairn.Unavailable), error
        assert "has not returned" in str(error), error
        assert set(error.failures) == {stuck}, error.failures
        dist.barrier()
        if block is not None:
            block.unlink()
        dist.barrier()
        os.environ.pop("HANG", None)
    for _ in range(1000):  # until the hung threads release their memory
        try:
            cairn.async_save(mine(3), checkpoint_id=directory).result()
        except cairn.Unavailable:
            time.sleep(0.02)
        else:
            break
    assert step_of_mine(directory, rank) == 3
    assert not list(directory.glob(".cairn-*")), list(directory.iterdir())
    orphan(rank, directory)


def orphan(rank: int, directory: Path) -> None:
    """A writer process hangs after its trainer died: the surviving rank gets the error, and the writer ends."""
    dist.barrier()
    block = hang() if rank == 1 else None
    future = cairn.async_save(mine(4), checkpoint_id=directory, async_checkpointer_type=PROCESS)
    if block is not None:
        from cairn._async.async_saver import DefaultSavers
        from cairn._process import part

        (FOLDER / "writer").write_text(str(part(DefaultSavers).by_process[True].writer_pid))
        os.kill(os.getpid(), signal.SIGKILL)
    error = future.exception()
    assert isinstance(error, cairn.Unavailable), error
    assert "has not returned" in str(error), error
    os._exit(0)  # the process group has lost a rank


def mine(step: int) -> dict[str, Any]:
    return {str(dist.get_rank()): state(step)}


def step_of_mine(directory: Path, rank: int) -> int:
    found: dict[str, Any] = {str(rank): {"w": torch.zeros(1_000_000), "step": -1}}
    cairn.load(found, checkpoint_id=directory)
    return int(found[str(rank)]["step"])


def stalled(call: str, save: Callable[[], object]) -> cairn.Unavailable:
    """Returns the error of a save in which `call` hangs. All calls but `call` have deadlines for a busy machine."""
    seconds = {"pwrite": "deadline_seconds", "fsync": "sync_deadline_seconds", "renameat": "publish_deadline_seconds"}
    cairn.configure_saves(**{name: SECONDS if name == seconds[call] else 1000.0 for name in seconds.values()})
    try:
        save()
    except cairn.Unavailable as error:
        assert "has not returned" in str(error), error
        assert str(FOLDER) in str(error), error
        return error
    raise AssertionError("the save did not fail")


def go_on(block: Path, directory: Path) -> None:
    """Releases the hung call, and waits until the hung thread has removed its files."""
    block.unlink()
    for _ in range(2000):
        if not list(directory.glob(".cairn-*")):
            return
        time.sleep(0.02)
    raise AssertionError(list(directory.iterdir()))


def blocking() -> None:
    """One rank: in each kind of blocking save, each call that can hang."""
    directory, alone = FOLDER / "checkpoint", FOLDER / "alone"
    checkpointer = cairn.checkpointer.make_sync_checkpointer()

    def alone_step() -> int:
        return int(checkpointer.load(str(alone), {"w": torch.zeros(1_000_000), "step": -1})["step"])

    saves: list[tuple[Path, Callable[[int], object], Callable[[], int]]] = [
        (directory, lambda step: cairn.save(state(step), checkpoint_id=directory), lambda: loaded_step(directory)),
        (alone, lambda step: checkpointer.save(str(alone), state(step)), alone_step),
    ]
    for place, save, loaded in saves:
        save(1)
        for call in ("pwrite", "fsync", "renameat"):
            block = hang(call)
            error = stalled(call, lambda: save(2))  # noqa: B023 - called at once
            assert ("unknown" in str(error)) == (call == "renameat"), error
            assert loaded() == 1
            go_on(block, place)
            assert loaded() == (2 if call == "renameat" else 1)
        save(3)
        assert loaded() == 3
        assert len(list(place.iterdir())) == 2, list(place.iterdir())


def blocking_end() -> None:
    """One rank: a slow fsync; Ctrl-C while a write hangs; the end of the interpreter while a write hangs."""
    directory = FOLDER / "checkpoint"
    cairn.configure_saves(deadline_seconds=SECONDS_OF_A_SLOW_CALL, sync_deadline_seconds=1000)
    block = hang("fsync")

    def release() -> None:
        wait_until_reached(block)
        time.sleep(SECONDS_OF_A_SLOW_CALL + SECONDS)
        block.unlink()

    threading.Thread(target=release).start()
    cairn.save(state(1), checkpoint_id=directory)
    assert not block.exists()
    assert loaded_step(directory) == 1

    cairn.configure_saves()
    block = hang()
    interrupted(directory, 2, block)
    go_on(block, directory)
    assert loaded_step(directory) == 1

    hang()
    stalled("pwrite", lambda: cairn.save(state(2), checkpoint_id=directory))


def interrupted(
    directory: Path, step: int, block: Path, presses: int = 1, release_after: float | None = None
) -> tuple[KeyboardInterrupt, float]:
    """Presses Ctrl-C in a save whose call hangs, each time after the handler of the press before has run.

    Then removes `block` after `release_after` seconds. Returns the exception, and the seconds since the first handler.
    """
    handled_at: list[float] = []
    handled = threading.Semaphore(0)

    def handle(*_: object) -> None:
        handled_at.append(time.monotonic())
        handled.release()
        raise KeyboardInterrupt

    def press() -> None:
        wait_until_reached(block)
        for number in range(presses):
            if number > 0:
                time.sleep(1.5)  # a second press within a second counts as the first
            os.kill(os.getpid(), signal.SIGINT)
            handled.acquire()
        if release_after is not None:
            time.sleep(release_after)
            block.unlink()

    signal.signal(signal.SIGINT, handle)
    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    try:
        cairn.save(state(step), checkpoint_id=directory)
    except KeyboardInterrupt as error:
        assert len(handled_at) == presses
        return error, time.monotonic() - handled_at[0]
    raise AssertionError("the save was not interrupted")


def interruptions() -> None:
    """One rank: Ctrl-C while an fsync is slow, Ctrl-C twice while an fsync hangs, and Ctrl-C while the rename hangs."""
    directory = FOLDER / "checkpoint"
    cairn.save(state(1), checkpoint_id=directory)
    block = hang("fsync")
    interrupted(directory, 2, block, release_after=3)  # a save does not wait as long for another call
    assert not block.exists()
    assert not list(directory.glob(".cairn-*")), list(directory.iterdir())

    cairn.save(state(1), checkpoint_id=directory)
    block = hang("fsync")
    _, took = interrupted(directory, 2, block, presses=2)
    assert took < 30, took  # after one Ctrl-C a save waits thirty seconds for an fsync
    go_on(block, directory)
    assert loaded_step(directory) == 1

    block = hang("renameat")
    told = logging.handlers.BufferingHandler(10)
    logging.getLogger("cairn").addHandler(told)
    error, _ = interrupted(directory, 2, block)
    notes = [*getattr(error, "__notes__", ()), *(record.getMessage() for record in told.buffer)]
    assert len(notes) == 1 and "unknown" in notes[0] and str(directory) in notes[0], notes
    go_on(block, directory)
    assert loaded_step(directory) == 2


def dropped() -> None:
    """One rank: the program drops a writer in the middle of a save, while the withdrawal of the save's files hangs."""
    directory = FOLDER / "checkpoint"
    planner = dcp.DefaultSavePlanner()
    writer = cairn.FileSystemWriter(directory)
    writer.set_up_storage_writer(True)
    planner.set_up_planner(state(1), writer.storage_meta(), True)
    plans, _ = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    plans = writer.prepare_global_plan(plans)
    writer.write_data(plans[0], planner).wait()
    block = hang("unlinkat")
    assert list(directory.glob("*.distcp"))

    ticks, stop = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        wait_until_reached(block)
        while not stop.wait(0.001):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    del writer, plans
    gc.collect()
    seen = ticks
    stop.set()
    ticker.join()
    assert block.exists()
    assert seen > 2, seen  # if the lock were held during the wait, the thread could run only once, after the wait
    go_on(block, directory)
    assert not list(directory.iterdir()), list(directory.iterdir())


def blocking_ranks() -> None:
    """Two ranks: a call of one rank hangs, in saves by the engine and in saves by torch with the engine's storage."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{FOLDER / 'store'}", rank=rank, world_size=2)
    directory = FOLDER / "checkpoint"
    cairn.save(mine(1), checkpoint_id=directory)

    def by_torch() -> None:
        try:
            dcp.save(mine(2), storage_writer=cairn.FileSystemWriter(directory))
        except dcp.CheckpointException as error:
            raise error.failures[stuck][0] from None

    def by_engine() -> None:
        cairn.save(mine(2), checkpoint_id=directory)

    for save in (by_engine, by_torch):
        for stuck, call in ((0, "pwrite"), (1, "fsync"), (0, "renameat")):
            block = hang(call) if rank == stuck else None
            error = stalled(call, save)
            if save is by_engine:
                assert set(error.failures) == {stuck}, error.failures
            assert ("unknown" in str(error)) == (call == "renameat"), error
            assert step_of_mine(directory, rank) == 1
            dist.barrier()
            if block is not None:
                go_on(block, directory)
            dist.barrier()
            os.environ.pop("HANG", None)
            assert step_of_mine(directory, rank) == (2 if call == "renameat" else 1)
        cairn.save(mine(1), checkpoint_id=directory)
        dist.barrier()
        assert len(list(directory.iterdir())) == 3, list(directory.iterdir())
        dist.barrier()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
