"""A torch.distributed process group as the engine's collectives.

Bytes travel as uint8 tensors, preceded by lengths as int64; nothing is pickled. Every wait polls, for Python to handle
Ctrl-C during the wait for another rank.
"""

import contextlib
import ctypes
import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import get_backend_config

from cairn import _engine
from cairn._ranks.owned_group import OwnedGroup
from cairn._ranks.work_wait import wait_for_work
from cairn.errors import InvalidArgument

# A gather needs tensors of equal length. Messages are padded to a common length and sent in slices; the padded slices
# of all ranks together stay below this limit. What a message has beyond the common length goes by a broadcast of its
# own: padded to the longest of 4,096 messages, a single message of 8 MiB would move 34 GB.
_STAGING_BYTES_MAX = 64 << 20
_SLICE_BYTES_MIN = 4096
_BULK_PAUSE_SECONDS = 200e-6  # of the wait for a broadcast of tensor data, which takes milliseconds
_BROADCAST_COST = 16 << 10  # the bytes that take as long as the latency of a broadcast

# Backends known to gather and scatter. For all remaining backends, all_gather and broadcast are used, which every
# backend has.
_GATHERING_BACKENDS = {"gloo", "mpi", "nccl", "ucc", "xccl"}


def collectives_of(group: dist.ProcessGroup | None = None) -> _engine.Collectives:
    """Returns the ranks of `group` (None: all ranks) for the engine. Each rank makes its own object, and uses it from
    one thread."""
    return _engine.Collectives(GroupCalls(group))


class GroupCalls:
    """The engine's collectives, carried out by a process group. Ranks are numbered within the group, from 0.

    Between the calls the group may be used for another purpose, in equal order on every rank. Failures of the group are
    raised unchanged, after the group's time-out if a rank does not answer.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, owned: OwnedGroup | None = None) -> None:
        """`owned`: the owner of `group`, if Cairn made the group."""
        self._owned = owned
        self._staging: torch.Tensor | None = None  # on the CPU, for the next broadcast of tensor data
        self._group: Any = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self._group)
        if self.rank < 0:
            raise InvalidArgument("this process is not a rank of the process group", rank=dist.get_rank())
        self.size = dist.get_world_size(self._group)
        device, backend = _device_and_backend(self._group)
        # The current device is a thread's own setting: the index is read here, not in the engine's calls.
        self._device = torch.empty(0, device=device).device
        self._gathers = backend in _GATHERING_BACKENDS

    def gather(self, message: bytes, root: int) -> list[bytes]:
        """Returns the messages of all ranks at `root`, an empty list on the remaining ranks."""
        lengths = self._all_gather_lengths(len(message))
        common = common_length(lengths)
        received = [bytearray() for _ in range(self.size)] if self.rank == root else []
        for start, stop in self._slices(common):
            rows = self._gather_equal(self._tensor(message[start:stop], stop - start), root)
            if rows is not None:
                _extend(received, rows, lengths, start)
        for sender, rest in self._rests(message, lengths, common):
            if self.rank == root:
                received[sender] += rest
        return [bytes(whole) for whole in received]

    def scatter(self, messages: Sequence[bytes], root: int) -> bytes:
        """Returns the message of `root` for this rank."""
        lengths = [-1] * self.size  # sent to all ranks if the root has a wrong number of messages
        if self.rank == root and len(messages) == self.size:
            lengths = [len(message) for message in messages]
        lengths = self._broadcast_numbers(lengths, root)
        if min(lengths) < 0:
            self._refuse_scatter(messages, root)
        common = common_length(lengths)
        received = bytearray()
        for start, stop in self._slices(common):
            parts = []
            if self.rank == root:
                parts = [self._tensor(message[start:stop], stop - start) for message in messages]
            part = self._scatter_equal(parts, stop - start, root)
            received += _bytes_of(part[: max(lengths[self.rank] - start, 0)])
        for receiver, length in enumerate(lengths):
            rest = messages[receiver][common:] if self.rank == root else b""
            rest = self._broadcast_bytes(rest, length - common, root)
            if self.rank == receiver:
                received += rest
        return bytes(received)

    def broadcast(self, message: bytes, root: int) -> bytes:
        """Returns the message of `root`."""
        (length,) = self._broadcast_numbers([len(message)], root)
        return self._broadcast_bytes(message, length, root)

    def all_gather(self, message: bytes) -> list[bytes]:
        """Returns the messages of all ranks."""
        lengths = self._all_gather_lengths(len(message))
        common = common_length(lengths)
        received = [bytearray() for _ in range(self.size)]
        for start, stop in self._slices(common):
            rows = self._all_gather_equal(self._tensor(message[start:stop], stop - start))
            _extend(received, rows, lengths, start)
        for sender, rest in self._rests(message, lengths, common):
            received[sender] += rest
        return [bytes(whole) for whole in received]

    def barrier(self) -> None:
        """Returns when every rank has called barrier(). Torch's own barrier would have to guess the device."""
        self._all_gather_lengths(0)

    def smallest(self, numbers: Sequence[int]) -> list[int]:
        """Returns, for each place, the smallest of the ranks' numbers, which are as many on every rank."""
        tensor = torch.tensor(list(numbers), dtype=torch.int64, device=self._device)
        wait_for_work(dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._group, async_op=True))
        return [int(number) for number in tensor.tolist()]

    def broadcast_in_place(self, address: int, length: int, root: int) -> None:
        """Sends the `length` bytes at `address` of `root` to the address of each remaining rank.

        The transport works on a tensor of its own: a collective that was given up may still use its memory.
        """
        if self._staging is None or len(self._staging) < length:
            self._staging = torch.empty(length, dtype=torch.uint8)
        staging, self._staging = self._staging, None  # given up with the collective, if that fails
        part = staging[:length]
        if self.rank == root:
            ctypes.memmove(part.data_ptr(), address, length)
        sent = part.to(self._device)
        work = dist.broadcast(sent, src=self._global(root), group=self._group, async_op=True)
        wait_for_work(work, pause_seconds_max=_BULK_PAUSE_SECONDS)
        if self.rank != root:
            part.copy_(sent)
            ctypes.memmove(address, part.data_ptr(), length)
        self._staging = staging

    def subgroup(self, ranks: Sequence[int]) -> "GroupCalls":
        """Returns the calls of some ranks of the group, which make the call together: on a gloo group of Cairn's own,
        with the time-out of this group."""
        owned = OwnedGroup([self._global(rank) for rank in ranks], _timeout_of(self._group))
        return GroupCalls(owned.group, owned)

    def _rests(self, message: bytes, lengths: list[int], common: int) -> Iterator[tuple[int, bytes]]:
        """Yields the ranks with messages longer than `common`, and the bytes beyond, on every rank."""
        for sender, length in enumerate(lengths):
            if length > common:
                yield sender, self._broadcast_bytes(message[common:], length - common, sender)

    def _broadcast_bytes(self, message: bytes, length: int, root: int) -> bytes:
        """Returns the message of `root`, which has `length` bytes; on the remaining ranks `message` is ignored."""
        received = bytearray()
        for start in range(0, length, _STAGING_BYTES_MAX):
            size = min(length - start, _STAGING_BYTES_MAX)
            tensor = self._tensor(message[start : start + size] if self.rank == root else b"", size)
            self._broadcast(tensor, root)
            received += _bytes_of(tensor)
        return bytes(received)

    def _refuse_scatter(self, messages: Sequence[bytes], root: int) -> None:
        if self.rank != root:
            raise RuntimeError(f"rank {root} gave the scatter a wrong number of messages")
        raise InvalidArgument(
            "scatter needs one message per rank at the root", expected=str(self.size), actual=str(len(messages))
        )

    def _slices(self, length: int) -> Iterator[tuple[int, int]]:
        step = max(_STAGING_BYTES_MAX // self.size, _SLICE_BYTES_MIN)
        for start in range(0, length, step):
            yield start, min(start + step, length)

    def _tensor(self, message: bytes, length: int) -> torch.Tensor:
        """Returns a new tensor with the message, padded with zeros."""
        padded = bytearray(message)
        padded += bytes(length - len(message))
        return torch.frombuffer(padded, dtype=torch.uint8).to(self._device)

    def _all_gather_lengths(self, length: int) -> list[int]:
        mine = torch.tensor([length], dtype=torch.int64, device=self._device)
        return [int(number) for number in self._all_gather_equal(mine).flatten().tolist()]

    def _broadcast_numbers(self, numbers: list[int], root: int) -> list[int]:
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        self._broadcast(tensor, root)
        return [int(number) for number in tensor.tolist()]

    # Each of the next four methods is a single collective of the group on tensors of equal length. A gather returns a
    # tensor with a row per rank: a tensor per rank takes microseconds for each of thousands of ranks.

    def _gather_equal(self, mine: torch.Tensor, root: int) -> torch.Tensor | None:
        if not self._gathers:
            gathered = self._all_gather_equal(mine)
            return gathered if self.rank == root else None
        rows = self._row_per_rank(mine) if self.rank == root else None
        parts = None if rows is None else list(rows.unbind())
        wait_for_work(dist.gather(mine, parts, dst=self._global(root), group=self._group, async_op=True))
        return rows

    def _scatter_equal(self, parts: list[torch.Tensor], length: int, root: int) -> torch.Tensor:
        if not self._gathers:
            joined = torch.cat(parts) if parts else self._tensor(b"", length * self.size)
            self._broadcast(joined, root)
            return joined[self.rank * length : (self.rank + 1) * length]
        mine = self._tensor(b"", length)
        wait_for_work(dist.scatter(mine, parts or None, src=self._global(root), group=self._group, async_op=True))
        return mine

    def _all_gather_equal(self, mine: torch.Tensor) -> torch.Tensor:
        rows = self._row_per_rank(mine)
        wait_for_work(dist.all_gather(list(rows.unbind()), mine, group=self._group, async_op=True))
        return rows

    def _row_per_rank(self, row: torch.Tensor) -> torch.Tensor:
        return torch.empty((self.size, *row.shape), dtype=row.dtype, device=row.device)

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        wait_for_work(dist.broadcast(tensor, src=self._global(root), group=self._group, async_op=True))

    def _global(self, rank: int) -> int:
        """Returns the rank in the whole job: torch before 2.6 lacks the arguments `group_src` and `group_dst`."""
        return dist.get_global_rank(self._group, rank)


def common_length(lengths: Sequence[int]) -> int:
    """Returns the length up to which messages of these lengths are padded; longer messages are broadcast beyond it.

    The busiest rank of a gather receives the padded messages of all ranks, and the busiest rank of a broadcast sends
    its bytes to about log2(ranks) others. The result moves the fewest bytes through the busiest rank.
    """
    ascending = sorted(lengths)
    copies = max(math.ceil(math.log2(len(ascending))), 1)
    beyond = sum(ascending)  # bytes above the common length
    best, best_cost = 0, copies * (beyond + _BROADCAST_COST * sum(length > 0 for length in ascending))
    below = 0
    for index, length in enumerate(ascending):
        beyond -= (length - below) * (len(ascending) - index)
        below = length
        broadcasts = len(ascending) - 1 - index
        cost = len(ascending) * length + copies * (beyond + _BROADCAST_COST * broadcasts)
        if cost < best_cost:
            best, best_cost = length, cost
    return best


def _device_and_backend(group: Any) -> tuple[str, str]:
    """Returns the device type for the group's tensors, the CPU where possible, and the backend for the device type."""
    pairs = [pair.partition(":")[::2] for pair in get_backend_config(group).split(",")]
    return min(pairs, key=lambda pair: pair[0] != "cpu")


def _timeout_of(group: Any) -> timedelta | None:
    """Returns the time-out of the group's collectives; None: unknown."""
    with contextlib.suppress(AttributeError, RuntimeError):
        backend = group._get_backend(torch.device(_device_and_backend(group)[0]))
        timeout = backend.options._timeout
        return timeout if isinstance(timeout, timedelta) else None
    return None


def _extend(received: list[bytearray], rows: torch.Tensor, lengths: list[int], start: int) -> None:
    """Appends to each message its next part, which begins at `start`, without the padding. `rows`: a part per rank."""
    width = rows.shape[1]
    with memoryview(_bytes_of(rows)) as parts:
        for rank, (whole, length) in enumerate(zip(received, lengths, strict=True)):
            begin = rank * width
            whole.extend(parts[begin : begin + min(max(length - start, 0), width)])


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
