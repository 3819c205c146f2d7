"""Barriers of the ranks' writers, each with a deadline.

A barrier class of the caller's own has a ``barrier_type`` and is registered with :func:`register_barrier`; a
`BarrierConfig` then names the type.
"""

import abc
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from cairn._ranks.work_wait import wait_for_work
from cairn.errors import InvalidArgument, Unavailable

#: The barrier classes by their ``barrier_type``.
BARRIER_REGISTRY: dict[str, type] = {}

_Class = TypeVar("_Class", bound=type)

_NAMED_RANKS_MAX = 16  # ranks that an error lists


class BarrierTimeout(Unavailable, TimeoutError):
    """Not all ranks reached a barrier in time. The text begins with "Timed out", as in torch's errors."""


def register_barrier(barrier_class: _Class) -> _Class:
    """Decorates a class that `BarrierConfig` finds by ``barrier_type``; a class without a ``barrier_type`` is
    ignored."""
    if hasattr(barrier_class, "barrier_type"):
        BARRIER_REGISTRY[barrier_class.barrier_type] = barrier_class
    return barrier_class


@dataclass
class BarrierConfig:
    """The type of a barrier, None for no barrier, and the arguments of the constructor."""

    barrier_type: str | None = None
    barrier_args: dict[str, Any] = field(default_factory=dict)


def create_barrier_from_config(barrier_config: BarrierConfig) -> "Barrier | None":
    """Returns the configured barrier. Raises InvalidArgument (a ValueError) for an unregistered type."""
    wanted = barrier_config.barrier_type
    if wanted is None:
        return None
    if wanted not in BARRIER_REGISTRY:
        known = ", ".join(sorted(BARRIER_REGISTRY))
        raise InvalidArgument(f"Unknown barrier type: {wanted}", expected=f"one of {known}", actual=wanted)
    barrier: Barrier = BARRIER_REGISTRY[wanted](**barrier_config.barrier_args)
    return barrier


class Barrier(abc.ABC):
    """A point where each rank waits until all ranks have arrived."""

    @abc.abstractmethod
    def __init__(self, **kwargs: dict[str, Any]) -> None:
        """Takes the arguments in `BarrierConfig.barrier_args`."""

    @abc.abstractmethod
    def execute_barrier(self) -> None:
        """Returns when every rank has made as many calls as this rank. Raises after a time-out or a failure."""

    def execute_within(self, timeout_secs: float) -> None:
        """As execute_barrier(), with a deadline in seconds where the barrier supports a deadline."""
        del timeout_secs
        self.execute_barrier()


@register_barrier
class DistBarrier(Barrier):
    """A barrier of the ranks of torch's default process group.

    Raises InvalidArgument without a process group. `timeout_secs` is for execute_barrier() (None: the group's
    time-out).
    """

    barrier_type = "dist_barrier"

    def __init__(self, timeout_secs: float | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InvalidArgument("DistBarrier needs an initialized process group")
        self._timeout_secs = timeout_secs

    def execute_barrier(self) -> None:
        """Raises BarrierTimeout after `timeout_secs`; the process group is unusable afterwards."""
        self._wait(self._timeout_secs)

    def execute_within(self, timeout_secs: float) -> None:
        """As execute_barrier(), with the shorter of the two time-outs."""
        self._wait(timeout_secs if self._timeout_secs is None else min(timeout_secs, self._timeout_secs))

    @staticmethod
    def _wait(timeout_secs: float | None) -> None:
        if not wait_for_work(dist.barrier(async_op=True), timeout_secs):
            raise BarrierTimeout(
                f"Timed out: not all of the {dist.get_world_size()} ranks reached the barrier within "
                f"{timeout_secs:g} s",
                rank=dist.get_rank(),
            )


@register_barrier
class TCPStoreBarrier(Barrier):
    """A barrier in a key-value store that rank 0 hosts at `master_address`:`tcpstore_port`.

    The barrier needs no process group. The constructor waits up to `timeout_barrier_init_secs` seconds for all ranks,
    and a barrier waits up to `timeout_secs`. Barriers of different `barrier_prefix` are independent.
    """

    barrier_type = "tcp_store"

    def __init__(
        self,
        global_rank: int,
        global_world_size: int,
        barrier_prefix: str,
        timeout_barrier_init_secs: int,
        use_checkpoint_barrier_tcpstore_libuv: bool,
        tcpstore_port: int,
        master_address: str,
        timeout_secs: int,
    ) -> None:
        self._rank = global_rank
        self._world_size = global_world_size
        self._prefix = barrier_prefix
        self._timeout_secs: float = timeout_secs
        self._count = 0  # barriers until now
        try:
            self._store = TCPStore(
                master_address,
                int(tcpstore_port),
                world_size=global_world_size,
                is_master=global_rank == 0,
                timeout=timedelta(seconds=timeout_barrier_init_secs),
                use_libuv=use_checkpoint_barrier_tcpstore_libuv,
            )
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            is_late = isinstance(error, dist.DistStoreError) or "timed out" in str(error)
            where = f"{master_address}:{tcpstore_port} within {timeout_barrier_init_secs} s"
            text = f"the {global_world_size} ranks did not meet at {where}: {error}"
            if is_late:
                raise BarrierTimeout(f"Timed out: {text}", rank=global_rank) from error
            raise Unavailable(text, rank=global_rank) from error

    def execute_barrier(self) -> None:
        """Raises BarrierTimeout, which names the missing ranks, after `timeout_secs`."""
        self._wait(self._timeout_secs)

    def execute_within(self, timeout_secs: float) -> None:
        """As execute_barrier(), with the shorter of the two time-outs."""
        self._wait(min(timeout_secs, self._timeout_secs))

    def _wait(self, timeout_secs: float) -> None:
        turn = self._count
        self._count += 1  # also on failure: a late rank must not be counted at the next barrier
        self._store.set(self._key(turn, "here", self._rank), "")
        everybody = [self._key(turn, "here", rank) for rank in range(self._world_size)]
        try:
            self._store.wait(everybody, timedelta(seconds=timeout_secs))
        except dist.DistStoreError as error:
            missing = [rank for rank, key in enumerate(everybody) if not self._store.check([key])]
            named = ", ".join(map(str, missing[:_NAMED_RANKS_MAX])) + ("..." if len(missing) > _NAMED_RANKS_MAX else "")
            raise BarrierTimeout(
                f"Timed out: {len(missing)} of {self._world_size} ranks did not reach barrier '{self._prefix}' within "
                f"{timeout_secs:g} s: {named}",
                rank=self._rank,
            ) from error
        self._leave(turn, timeout_secs)

    def _leave(self, turn: int, timeout_secs: float) -> None:
        """Leaves the barrier; the host leaves last, because the store ends with the host's process."""
        if self._rank != 0:
            self._store.set(self._key(turn, "gone", self._rank), "")
            return
        others = [self._key(turn, "gone", rank) for rank in range(1, self._world_size)]
        try:
            self._store.wait(others, timedelta(seconds=timeout_secs))
        except dist.DistStoreError:
            return  # a rank died after arriving: the barrier was reached
        for rank in range(self._world_size):
            self._store.delete_key(self._key(turn, "here", rank))
        for key in others:
            self._store.delete_key(key)

    def _key(self, turn: int, what: str, rank: int) -> str:
        return f"{self._prefix}/{turn}/{what}/{rank}"
