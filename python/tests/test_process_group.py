"""The engine's collectives over real process groups: gloo between real processes, through C++ and back."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import context, init, start

import cairn
from cairn import _engine
from cairn._ranks import process_group
from cairn._ranks.process_group import GroupCalls, collectives_of


def message_of(rank: int, number: int) -> bytes:
    """Length and content differ for each rank and number; some messages are empty, most hold zeros."""
    return bytes(i % 3 * (rank + number) % 256 for i in range(rank * 37 + number % 11))


def check_calls(ranks: _engine.Collectives, root: int, messages: list[bytes]) -> None:
    """Makes each call, with a message for each rank."""
    mine, is_root = messages[ranks.rank], ranks.rank == root
    assert ranks.gather(mine, root) == (messages if is_root else [])
    assert ranks.scatter(messages if is_root else [], root) == mine
    assert ranks.broadcast(messages[root] if is_root else b"ignored", root) == messages[root]
    memory = bytearray(messages[root]) if is_root else bytearray(len(messages[root]))
    ranks.broadcast_in_place(memory, root)
    assert memory == messages[root]
    assert ranks.all_gather(mine) == messages
    check_smallest(ranks, root)
    ranks.barrier()


def check_smallest(ranks: _engine.Collectives, number: int) -> None:
    least = -(2**63) if ranks.rank == 0 else 2**63 - 1
    assert ranks.smallest([ranks.rank, -ranks.rank, number, least]) == [0, 1 - ranks.size, number, -(2**63)]


def check_conformance(group: dist.ProcessGroup | None) -> None:
    """Runs the checks of src/coordination/collectives_conformance_test.cc over `group`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranks = collectives_of(group)
        size = ranks.size
        assert size == dist.get_world_size(group)
        assert ranks.rank == dist.get_rank(group)
        for root in range(size):
            for number in (0, 1, 2):
                check_calls(ranks, root, [message_of(rank, number) for rank in range(size)])
            check_calls(ranks, root, [b""] * size)
        if size < 4:
            check_calls(ranks, size - 1, [bytes([rank]) * (10_000_000 + rank) for rank in range(size)])

        chance = random.Random(5)  # equal calls on every rank
        for number in range(100):
            root = chance.randrange(size)
            messages = [message_of(rank, number) for rank in range(size)]
            mine, is_root = messages[ranks.rank], ranks.rank == root
            match chance.randrange(6):
                case 0:
                    assert ranks.gather(mine, root) == (messages if is_root else [])
                case 1:
                    assert ranks.scatter(messages if is_root else [], root) == mine
                case 2:
                    assert ranks.broadcast(mine, root) == messages[root]
                case 3:
                    assert ranks.all_gather(mine) == messages
                case 4:
                    check_smallest(ranks, number)
                case _:
                    ranks.barrier()
        check_refused_scatter(ranks)
        for root in (size, 2**40):
            with pytest.raises(cairn.InvalidArgument):
                collectives_of(group).broadcast(b"", root)


def check_refused_scatter(ranks: _engine.Collectives) -> None:
    root = ranks.size - 1
    with pytest.raises(cairn.Error) as caught:
        ranks.scatter([b"x"] * (ranks.size + 1), root)
    assert type(caught.value) is (cairn.InvalidArgument if ranks.rank == root else cairn.Unavailable)
    with pytest.raises(cairn.Unavailable, match="the group is unusable after a failed call"):
        ranks.barrier()


def conform(rank: int, ranks: int, folder: Path) -> None:
    init(rank, ranks, folder)
    check_conformance(None)
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_gloo(ranks: int, tmp_path: Path) -> None:
    start(conform, ranks, tmp_path)


def refuse(*_arguments: Any, **_keywords: Any) -> None:
    raise AssertionError("this backend has no such call")


def make_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)  # type: ignore[attr-defined]


def check_uneven_messages(size: int) -> None:
    """A long message among short ones is not the length of the others."""
    moved = 0

    def counted(call: Any) -> Any:
        def count(*tensors: Any, **keywords: Any) -> Any:
            nonlocal moved
            for tensor in tensors:
                moved += sum(part.numel() for part in tensor) if isinstance(tensor, list) else 0
                moved += tensor.numel() if isinstance(tensor, torch.Tensor) else 0
            return call(*tensors, **keywords)

        return count

    calls = {name: getattr(dist, name) for name in ("gather", "scatter", "all_gather", "broadcast")}
    messages = [bytes([rank + 1]) * 20 for rank in range(size)]
    messages[1] = b"0123456789" * 100_000
    for name, call in calls.items():
        setattr(dist, name, counted(call))
    try:
        check_calls(collectives_of(None), 2, messages)
    finally:
        for name, call in calls.items():
            setattr(dist, name, call)
    assert moved < 4 * 1_000_000 + 10_000, "one copy of the long message for each of the four calls"


@pytest.mark.parametrize(
    ("lengths", "common"),
    [
        ([0, 0, 0], 0),
        ([7], 7),
        ([100] * 4095 + [8 << 20], 100),
        ([8 << 20] + [0] * 4095, 0),
        ([1 << 20] * 64, 1 << 20),
        ([1000 + rank for rank in range(64)], 1063),
    ],
)
def test_messages_are_padded_to_the_length_that_moves_the_fewest_bytes(lengths: list[int], common: int) -> None:
    assert process_group.common_length(lengths) == common


def conform_in_groups(rank: int, ranks: int, folder: Path) -> None:
    init(rank, ranks, folder)
    dist.Backend.register_backend("sparse", make_gloo, devices=["cpu"])
    some = dist.new_group([1, 3])
    several = dist.new_group(backend="cpu:gloo,cuda:gloo")
    sparse = dist.new_group(backend="sparse")

    check_conformance(None)
    check_conformance(several)
    if rank in (1, 3):
        check_conformance(some)
        assert collectives_of(some).gather(b"%d" % rank, 1) == ([b"1", b"3"] if rank == 3 else [])
    else:
        with pytest.raises(cairn.InvalidArgument, match="not a rank of the process group"):
            collectives_of(some)
    check_uneven_messages(ranks)
    dist.gather = dist.scatter = refuse
    check_conformance(sparse)
    # Messages that need several slices.
    process_group._STAGING_BYTES_MAX = 50_000
    ranks_of_sparse = collectives_of(sparse)
    check_calls(ranks_of_sparse, 2, [bytes([rank + 1]) * (40_000 * rank) for rank in range(ranks)])
    dist.destroy_process_group()


@pytest.mark.slow
def test_groups_of_a_job(tmp_path: Path) -> None:
    """All ranks, some of the ranks, several devices, and a backend without gather."""
    start(conform_in_groups, 4, tmp_path)


class Dies(GroupCalls):
    """Dies in the middle of a gather: after the lengths, before the bytes."""

    def _gather_equal(self, mine: torch.Tensor, root: int) -> torch.Tensor | None:
        os.kill(os.getpid(), signal.SIGKILL)
        return super()._gather_equal(mine, root)


def lose_a_rank(rank: int, ranks: int, folder: Path) -> None:
    init(rank, ranks, folder, timeout_seconds=10)
    group = _engine.Collectives(Dies() if rank == 2 else GroupCalls())
    with pytest.raises(cairn.Unavailable) as caught:
        group.gather(b"x", 0)
        assert rank != 0
        group.barrier()  # the send of a rank that is not the root may succeed
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert str(caught.value.__cause__) in str(caught.value)
    with pytest.raises(cairn.Unavailable, match="unusable"):
        group.barrier()
    os._exit(0)  # torch's own shutdown needs all ranks


@pytest.mark.slow
def test_a_killed_rank_is_an_error_for_the_others(tmp_path: Path) -> None:
    workers = [context.Process(target=lose_a_rank, args=(rank, 3, tmp_path)) for rank in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, -signal.SIGKILL]


INTERRUPTED = """
import datetime, signal, sys
import torch.distributed as dist
import cairn
from cairn import _engine
from cairn._ranks.process_group import GroupCalls

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
store, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

class Announces(GroupCalls):
    def broadcast(self, message, root):
        print("waiting", flush=True)
        return super().broadcast(message, root)

collectives = _engine.Collectives(Announces())
collectives.barrier()
if rank == 1:
    sys.stdin.readline()  # never comes to the broadcast
    sys.exit()
try:
    collectives.broadcast(b"", 1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
try:
    collectives.barrier()
except cairn.Unavailable as error:
    print("refused" if "KeyboardInterrupt" in str(error) else error, flush=True)
import os; os._exit(0)
"""


def test_ctrl_c_interrupts_the_wait_for_other_ranks(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    commands = [[sys.executable, "-c", INTERRUPTED, str(tmp_path / "store"), str(rank)] for rank in range(2)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(commands[0], **pipes) as waiting, subprocess.Popen(commands[1], **pipes) as absent:
        try:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "waiting\n"
            waiting.send_signal(signal.SIGINT)
            assert waiting.stdout.readline() == "interrupted\n"
            assert waiting.stdout.readline() == "refused\n"
        finally:
            waiting.kill()
            absent.kill()


class Alone:
    """The calls of one rank. `barrier` raises `failure` if given."""

    rank = 0
    size = 1

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.calls = 0

    def gather(self, message: bytes, root: int) -> list[bytes]:
        return [message]

    def scatter(self, messages: list[bytes], root: int) -> bytes:
        return messages[root]

    def broadcast(self, message: bytes, root: int) -> bytes:
        return message

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message]

    def barrier(self) -> None:
        self.calls += 1
        if self.failure is not None:
            raise self.failure


def test_the_exception_of_a_call_is_the_cause() -> None:
    failure = RuntimeError("connection closed by peer")
    ranks = _engine.Collectives(Alone(failure))
    with pytest.raises(cairn.Unavailable, match="RuntimeError: connection closed by peer") as caught:
        ranks.barrier()
    assert caught.value.__cause__ is failure


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupts_reach_the_caller_unchanged(kind: type[BaseException]) -> None:
    failure = kind("stop")
    calls = Alone(failure)
    ranks = _engine.Collectives(calls)
    with pytest.raises(kind) as caught:
        ranks.barrier()
    assert caught.value is failure
    with pytest.raises(cairn.Unavailable, match=f"{kind.__name__}: stop"):
        ranks.barrier()
    assert calls.calls == 1


def test_an_exception_that_leads_back_is_no_leak() -> None:
    """A reference cycle is collected.

    The exception holds the frame, the frame the collectives, the collectives the calls, and the calls the exception.
    """
    watched = []

    def fail() -> None:
        calls = Alone(RuntimeError("no"))
        watched.append(weakref.ref(calls))
        ranks = _engine.Collectives(calls)
        with contextlib.suppress(cairn.Unavailable):
            ranks.barrier()

    fail()
    gc.collect()
    assert watched[0]() is None


def test_results_of_a_wrong_kind_are_errors() -> None:
    class Odd(Alone):
        def broadcast(self, message: bytes, root: int) -> bytes:
            return "text"  # type: ignore[return-value]

        def all_gather(self, message: bytes) -> list[bytes]:
            return [message, message]

        def gather(self, message: bytes, root: int) -> list[bytes]:
            return None  # type: ignore[return-value]

    with pytest.raises(cairn.Unavailable) as caught:
        _engine.Collectives(Odd()).broadcast(b"", 0)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(cairn.Unavailable) as caught:
        _engine.Collectives(Odd()).gather(b"", 0)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(cairn.InvalidArgument, match="wrong number of messages"):
        _engine.Collectives(Odd()).all_gather(b"")


def test_the_engine_waits_without_the_lock() -> None:
    """Ranks in two threads of the process. Their calls wait for each other."""
    meeting = threading.Barrier(2)

    class Meets(Alone):
        def barrier(self) -> None:
            meeting.wait(240)

    other = threading.Thread(target=_engine.Collectives(Meets()).barrier)
    other.start()
    _engine.Collectives(Meets()).barrier()
    other.join()
    assert not meeting.broken
