"""A torch.distributed process group as the engine's collectives.

Bytes travel as uint8 tensors, preceded by lengths as int64; nothing is pickled. Every wait polls, for Python to handle
Ctrl-C during the wait for another rank.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import get_backend_config

from cairn import _engine
from cairn._ranks.work_wait import wait_for_work
from cairn.errors import InvalidArgument

# A gather needs tensors of equal length. Messages are padded to the longest and sent in slices; the padded slices of
# all ranks together stay below this limit.
_STAGING_BYTES_MAX = 64 << 20
_SLICE_BYTES_MIN = 4096

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

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
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
        received = [bytearray() for _ in range(self.size)] if self.rank == root else []
        for start, stop in self._slices(max(lengths)):
            parts = self._gather_equal(self._tensor(message[start:stop], stop - start), root)
            _extend(received, parts, lengths, start)
        return [bytes(whole) for whole in received]

    def scatter(self, messages: Sequence[bytes], root: int) -> bytes:
        """Returns the message of `root` for this rank."""
        lengths = [-1] * self.size  # sent to all ranks if the root has a wrong number of messages
        if self.rank == root and len(messages) == self.size:
            lengths = [len(message) for message in messages]
        lengths = self._broadcast_numbers(lengths, root)
        if min(lengths) < 0:
            self._refuse_scatter(messages, root)
        received = bytearray()
        for start, stop in self._slices(max(lengths)):
            parts = []
            if self.rank == root:
                parts = [self._tensor(message[start:stop], stop - start) for message in messages]
            part = self._scatter_equal(parts, stop - start, root)
            received += _bytes_of(part[: max(lengths[self.rank] - start, 0)])
        return bytes(received)

    def broadcast(self, message: bytes, root: int) -> bytes:
        """Returns the message of `root`."""
        (length,) = self._broadcast_numbers([len(message)], root)
        received = bytearray()
        for start in range(0, length, _STAGING_BYTES_MAX):
            size = min(length - start, _STAGING_BYTES_MAX)
            tensor = self._tensor(message[start : start + size] if self.rank == root else b"", size)
            self._broadcast(tensor, root)
            received += _bytes_of(tensor)
        return bytes(received)

    def all_gather(self, message: bytes) -> list[bytes]:
        """Returns the messages of all ranks."""
        lengths = self._all_gather_lengths(len(message))
        received = [bytearray() for _ in range(self.size)]
        for start, stop in self._slices(max(lengths)):
            parts = self._all_gather_equal(self._tensor(message[start:stop], stop - start))
            _extend(received, parts, lengths, start)
        return [bytes(whole) for whole in received]

    def barrier(self) -> None:
        """Returns when every rank has called barrier(). Torch's own barrier would have to guess the device."""
        self._all_gather_lengths(0)

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
        return [int(part.item()) for part in self._all_gather_equal(mine)]

    def _broadcast_numbers(self, numbers: list[int], root: int) -> list[int]:
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        self._broadcast(tensor, root)
        return [int(number) for number in tensor.tolist()]

    # Each of the next four methods is a single collective of the group on tensors of equal length.

    def _gather_equal(self, mine: torch.Tensor, root: int) -> list[torch.Tensor]:
        if not self._gathers:
            parts = self._all_gather_equal(mine)
            return parts if self.rank == root else []
        parts = [torch.empty_like(mine) for _ in range(self.size)] if self.rank == root else []
        wait_for_work(dist.gather(mine, parts or None, dst=self._global(root), group=self._group, async_op=True))
        return parts

    def _scatter_equal(self, parts: list[torch.Tensor], length: int, root: int) -> torch.Tensor:
        if not self._gathers:
            joined = torch.cat(parts) if parts else self._tensor(b"", length * self.size)
            self._broadcast(joined, root)
            return joined[self.rank * length : (self.rank + 1) * length]
        mine = self._tensor(b"", length)
        wait_for_work(dist.scatter(mine, parts or None, src=self._global(root), group=self._group, async_op=True))
        return mine

    def _all_gather_equal(self, mine: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        wait_for_work(dist.all_gather(parts, mine, group=self._group, async_op=True))
        return parts

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        wait_for_work(dist.broadcast(tensor, src=self._global(root), group=self._group, async_op=True))

    def _global(self, rank: int) -> int:
        """Returns the rank in the whole job: torch before 2.6 lacks the arguments `group_src` and `group_dst`."""
        return dist.get_global_rank(self._group, rank)


def _device_and_backend(group: Any) -> tuple[str, str]:
    """Returns the device type for the group's tensors, the CPU where possible, and the backend for the device type."""
    pairs = [pair.partition(":")[::2] for pair in get_backend_config(group).split(",")]
    return min(pairs, key=lambda pair: pair[0] != "cpu")


def _extend(received: list[bytearray], parts: list[torch.Tensor], lengths: list[int], start: int) -> None:
    """Appends to each message its next part, which begins at `start`, without the padding."""
    for whole, part, length in zip(received, parts, lengths, strict=False):  # no parts except at the root
        whole.extend(_bytes_of(part[: max(length - start, 0)]))


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
