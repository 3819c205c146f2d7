"""Staging: an unchanging copy of a live state; the trainer may change the state while the copy is written.

Between an ``AsyncCheckpointer`` and its native writer no staged copy exists: the state's bytes go directly to their
places in the files' images (:mod:`cairn._async.async_saver`). The stagers here are for foreign writers.
"""

import abc
import copy
import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from cairn.checkpointer.rank_info import STATE_DICT

_ALIGNMENT_BYTES = 64  # of a tensor in the buffer; sufficient for every dtype


class CheckpointStager(abc.ABC):
    """Makes unchanging copies of states."""

    @abc.abstractmethod
    def stage(
        self,
        state_dict: STATE_DICT,
        **kwargs: Any,
    ) -> STATE_DICT | Future[STATE_DICT]:
        """Returns a copy of `state_dict`, or a future of a copy; the state must not change until the future is done."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the stager's memory and threads."""


@dataclass
class CheckpointStagerConfig:
    """`use_async_staging`: the copy is made in the background, and ``stage`` returns a future of the copy.

    `use_shared_memory`: the copy is in shared memory, and can be passed to another process without a second copy.
    `use_pinned_memory`: the copy is in page-locked memory, if an accelerator is available and the memory is not shared.
    `use_non_blocking_copy`: copies from a device do not wait for each other. All are hints: none needs an accelerator.
    """

    use_pinned_memory: bool = True
    use_shared_memory: bool = True
    use_async_staging: bool = True
    use_non_blocking_copy: bool = True


class _Found(NamedTuple):
    """A tensor of the state, kept alive for its id, and a tensor that holds the storage at the time of the call."""

    tensor: torch.Tensor
    still: torch.Tensor


class DefaultStager(CheckpointStager):
    """Copies all tensors of a state into one buffer in CPU memory, and all remaining objects with ``copy.deepcopy``.

    Each copy has its own buffer while a tensor of the copy is alive: copies never overwrite each other. One thread at a
    time may use a stager.
    """

    def __init__(self, config: CheckpointStagerConfig | None = None) -> None:
        self._config = CheckpointStagerConfig() if config is None else config
        self._thread: ThreadPoolExecutor | None = None

    @property
    def config(self) -> CheckpointStagerConfig:
        """The configuration of the stager."""
        return self._config

    def stage(
        self,
        state_dict: STATE_DICT,
        **kwargs: Any,
    ) -> STATE_DICT | Future[STATE_DICT]:
        """As in CheckpointStager. `kwargs` are ignored.

        If a tensor is given new memory (``tensor.data = other``) during the copy, the old memory is staged.
        """
        found: dict[int, _Found] = {}
        _find_tensors(state_dict, found)
        if not self._config.use_async_staging:
            return self._copy(state_dict, found)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cairn-staging")
        return self._thread.submit(self._copy, state_dict, found)

    def close(self) -> None:
        """Waits for a running copy."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    def _copy(self, state_dict: STATE_DICT, found: dict[int, _Found]) -> STATE_DICT:
        offsets = []
        size = 0
        for _, tensor in found.values():
            offsets.append(size)
            size += math.ceil(tensor.numel() * tensor.element_size() / _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        buffer = self._buffer(size)
        copies: dict[int, Any] = {}
        with torch.no_grad():
            for (number, (owner, tensor)), offset in zip(found.items(), offsets, strict=True):
                part = buffer[offset : offset + tensor.numel() * tensor.element_size()]
                copied = part.view(tensor.dtype).view(tensor.shape)
                copied.copy_(tensor, non_blocking=self._config.use_non_blocking_copy)
                copies[number] = copied.requires_grad_(owner.requires_grad)
        if _has_accelerator():
            torch.accelerator.synchronize()
        copied_state: STATE_DICT = copy.deepcopy(state_dict, copies)  # tensors in the memo are copied already
        return copied_state

    def _buffer(self, size: int) -> torch.Tensor:
        shared = self._config.use_shared_memory
        pinned = self._config.use_pinned_memory and not shared and _has_accelerator()
        buffer = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        if shared and size:
            buffer.share_memory_()  # type: ignore[no-untyped-call]
        return buffer


def _find_tensors(state: Any, found: dict[int, _Found]) -> None:
    """Finds plain tensors in nested mappings, lists and tuples, by id. ``copy.deepcopy`` copies all remaining
    tensors."""
    waiting = [state]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif type(value) in (torch.Tensor, torch.nn.Parameter) and _is_plain(value):
            found[id(value)] = _Found(value, value.detach())


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_meta or tensor.is_nested)


def _has_accelerator() -> bool:
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6
    return accelerator is not None and accelerator.is_available()
