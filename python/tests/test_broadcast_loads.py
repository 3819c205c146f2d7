"""Loads with ``broadcast_replicas``: each rank has a mount namespace with a boot id of its own, as on its own host."""

import ctypes
import faulthandler
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import context, init
from wrapper_tensors import Weight

import cairn
from cairn._ranks.process_group import GroupCalls

BYTES = 24 << 20
_PATIENCE_SECONDS = 240
_TIMEOUT_SECONDS = 1000  # of the groups: a rank that waits for the time-out loses the patience of the test
# Of groups in which a rank dies. Gloo fails a transfer whose connection breaks, except within a message: a rank that
# has received or sent a part of it waits for the time-out.
_TIMEOUT_OF_BROKEN_SECONDS = 60
_CLONE_NEWNS, _CLONE_NEWUSER, _MS_BIND, _MS_PRIVATE = 0x20000, 0x10000000, 0x1000, 0x44000


def move_to_own_host(folder: Path) -> None:
    """Gives this process a boot id of its own: the engine then takes it for a process of another host."""
    libc = ctypes.CDLL(None, use_errno=True)
    boot_id = folder / f"boot_id-{os.getpid()}"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    target = b"/proc/sys/kernel/random/boot_id"
    done = (
        libc.unshare(_CLONE_NEWNS | (0 if os.getuid() == 0 else _CLONE_NEWUSER)) == 0
        and libc.mount(b"none", b"/", None, _MS_PRIVATE, None) == 0
        and libc.mount(os.fsencode(boot_id), target, None, _MS_BIND, None) == 0
    )
    assert done, os.strerror(ctypes.get_errno())


def can_move() -> bool:
    libc = ctypes.CDLL(None)
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.unshare(_CLONE_NEWNS | (0 if os.getuid() == 0 else _CLONE_NEWUSER)) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


pytestmark = pytest.mark.skipif(not can_move(), reason="needs namespaces of mounts")


def bytes_read() -> int:
    """By this process's reads of files, past the page cache or from it."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


def run(
    task: Callable[..., Any], ranks: int, folder: Path, *arguments: Any, timeout_seconds: float = _TIMEOUT_SECONDS
) -> list[Any]:
    """The results of ``task(rank, ...)`` by rank; None for a rank that was killed."""
    own = Path(tempfile.mkdtemp(prefix="ranks-", dir=folder))  # its store must not have addresses of an earlier group
    outlets, processes = [], []
    for rank in range(ranks):
        outlet, inlet = context.Pipe(duplex=False)
        processes.append(
            context.Process(target=_rank, args=(task, rank, ranks, own, inlet, timeout_seconds, *arguments))
        )
        processes[-1].start()
        inlet.close()
        outlets.append(outlet)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    results = []
    for outlet in outlets:
        assert outlet.poll(max(deadline - time.monotonic(), 0)), "a rank did not return"
        try:
            results.append(outlet.recv())
        except EOFError:
            results.append(None)
    for process in processes:
        process.join()
    return results


def _rank(
    task: Callable[..., Any], rank: int, ranks: int, folder: Path, inlet: Any, timeout_seconds: float, *arguments: Any
) -> None:
    faulthandler.dump_traceback_later(_PATIENCE_SECONDS - 20)  # of each thread, into the log of the test
    move_to_own_host(folder)
    init(rank, ranks, folder, timeout_seconds)
    result = task(*arguments)
    inlet.send(result)
    inlet.close()
    dist.barrier() if result is not None and "error" not in result else os._exit(0)
    dist.destroy_process_group()


def load(directory: Path, target: Any, broadcasts: bool) -> dict[str, Any]:
    """Loads the key "large" into `target`, and a small tensor. Returns the bytes read, or the failure."""
    state = {"large": target, "small": torch.zeros(10)}
    reader = cairn.FileSystemReader(directory, broadcast_replicas=broadcasts)
    before = bytes_read()
    try:
        cairn.load(state, storage_reader=reader)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    read = bytes_read() - before
    assert torch.equal(state["small"], torch.arange(10.0))
    return {"read": read}


def load_replicated(directory: Path, broadcasting_ranks: int) -> dict[str, Any]:
    target = torch.zeros(BYTES // 4)
    result = load(directory, target, dist.get_rank() < broadcasting_ranks)
    return result if "error" in result or torch.equal(target, whole()) else {"error": "other elements"}


def load_hybrid(directory: Path) -> dict[str, Any]:
    """Two replicas of two shards each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2))
    target = DTensor.from_local(torch.zeros(BYTES // 4), mesh, [Replicate(), Shard(0)], run_check=False)
    result = load(directory, target, broadcasts=True)
    half = dist.get_rank() % 2
    expected = whole(2 * BYTES)[half * BYTES // 4 : (half + 1) * BYTES // 4]
    return result if "error" in result or torch.equal(target.to_local(), expected) else {"error": "other elements"}


def load_and_kill_one(directory: Path) -> dict[str, Any]:
    if dist.get_rank() == 1:
        calls = []
        sends = GroupCalls.broadcast_in_place

        def send_or_die(self: GroupCalls, *arguments: Any) -> None:
            calls.append(arguments)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            sends(self, *arguments)

        GroupCalls.broadcast_in_place = send_or_die  # type: ignore[method-assign]
    return load_replicated(directory, 3)


def load_by_halves(directory: Path, failing: int, failure: type[BaseException]) -> dict[str, Any]:
    """Ranks 0 and 1 have a large tensor in common, ranks 2 and 3 another, and all ranks a small one."""
    if dist.get_rank() == failing:
        sends = GroupCalls.broadcast_in_place

        def send_or_fail(self: GroupCalls, *arguments: Any) -> None:
            if self.size == 2:
                raise failure("of the test")
            sends(self, *arguments)

        GroupCalls.broadcast_in_place = send_or_fail  # type: ignore[method-assign]
    key = "large" if dist.get_rank() < 2 else "other"
    state = {key: torch.zeros(BYTES // 4), "small": torch.zeros(10)}
    try:
        cairn.load(state, storage_reader=cairn.FileSystemReader(directory, broadcast_replicas=True))
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def whole(size: int = BYTES) -> torch.Tensor:
    return torch.arange(size // 4, dtype=torch.float32)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    cairn.save({"large": whole(), "small": torch.arange(10.0)}, checkpoint_id=directory)
    return directory


def total(results: list[Any]) -> int:
    assert not any("error" in result for result in results), results
    return sum(result["read"] for result in results)


def test_replicas_are_read_once_per_job(saved: Path, tmp_path: Path) -> None:
    assert BYTES <= total(run(load_replicated, 3, tmp_path, saved, 3)) < 1.3 * BYTES


@pytest.mark.parametrize("broadcasting", [0, 2])
def test_without_the_option_on_every_rank_each_host_reads(saved: Path, tmp_path: Path, broadcasting: int) -> None:
    copies = 3 if broadcasting == 0 else 2  # ranks 0 and 1 make a group of their own
    assert total(run(load_replicated, 3, tmp_path, saved, broadcasting)) >= copies * BYTES


def test_replicas_of_shards_are_read_once_per_job(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    cairn.save({"large": whole(2 * BYTES), "small": torch.arange(10.0)}, checkpoint_id=directory)
    assert 2 * BYTES <= total(run(load_hybrid, 4, tmp_path, directory)) < 2.3 * BYTES


def load_wrapper(directory: Path) -> dict[str, Any]:
    """A replicated tensor that only torch reads, into its class on rank 0 and into plain tensors elsewhere."""
    target = torch.zeros(50, 7)
    state = {"wrapper": Weight(target) if dist.get_rank() == 0 else target, "large": torch.zeros(BYTES // 4)}
    try:
        cairn.load(state, storage_reader=cairn.FileSystemReader(directory, broadcast_replicas=True))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "key": getattr(error, "key", None)}
    found = state["wrapper"].inner if dist.get_rank() == 0 else target
    is_equal = torch.equal(found, torch.ones(50, 7)) and torch.equal(state["large"], whole())
    return {} if is_equal else {"error": "other elements"}


def test_a_tensor_that_only_torch_reads_is_loaded_beside_broadcasts(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    cairn.save({"large": whole(), "wrapper": Weight(torch.ones(50, 7))}, checkpoint_id=directory)
    assert run(load_wrapper, 3, tmp_path, directory) == [{}, {}, {}]
    (file,) = directory.glob("*.distcp")
    damaged = bytearray(file.read_bytes())
    damaged[damaged.rindex(bytes(torch.ones(16).numpy()))] ^= 1
    file.write_bytes(damaged)
    assert [result.get("key") for result in run(load_wrapper, 3, tmp_path, directory)] == ["wrapper"] * 3


def test_a_damaged_byte_fails_on_every_rank(saved: Path, tmp_path: Path) -> None:
    (file,) = saved.glob("*.distcp")
    with file.open("r+b") as stream:
        stream.seek(BYTES // 2)
        stream.write(b"\x99\x99\x99\x99")
    for result in run(load_replicated, 3, tmp_path, saved, 3):
        assert "checksum differs" in result["error"]
        assert "large" in result["error"]


def test_a_killed_rank_fails_on_the_others(saved: Path, tmp_path: Path) -> None:
    results = run(load_and_kill_one, 3, tmp_path, saved, timeout_seconds=_TIMEOUT_OF_BROKEN_SECONDS)
    assert results[1] is None
    for result in (results[0], results[2]):
        assert "process group failed" in result["error"]


def test_an_interrupt_in_a_subgroup_is_raised_at_once(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    cairn.save({"large": whole(), "other": whole(), "small": torch.arange(10.0)}, checkpoint_id=directory)
    broken = _TIMEOUT_OF_BROKEN_SECONDS
    results = run(load_by_halves, 4, tmp_path, directory, 1, KeyboardInterrupt, timeout_seconds=broken)
    assert results[1]["error"].startswith("KeyboardInterrupt")
    assert all("process group failed" in results[rank]["error"] for rank in (0, 2, 3))


def test_the_reason_of_a_failure_in_a_subgroup_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    cairn.save({"large": whole(), "other": whole(), "small": torch.arange(10.0)}, checkpoint_id=directory)
    # The neighbour of the failed rank waits for the time-out.
    results = run(load_by_halves, 4, tmp_path, directory, 1, RuntimeError, timeout_seconds=20)
    assert "of the test" in results[1]["error"]
    assert all("error" in result for result in results)


def test_a_subgroup_has_the_time_out_of_its_group(tmp_path: Path) -> None:
    assert run(timeout_of_subgroup, 2, tmp_path) == [{"timeout": _TIMEOUT_SECONDS}] * 2


def timeout_of_subgroup() -> dict[str, float]:
    subgroup = GroupCalls().subgroup([0, 1])
    timeout: timedelta = subgroup._group._get_backend(torch.device("cpu")).options._timeout
    dist.barrier()  # the release of the group closes connections that the other rank may still be making
    return {"timeout": timeout.total_seconds()}
