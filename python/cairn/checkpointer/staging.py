"""Staging: a still copy of a live state, so that the trainer may change it while the copy is being written.

Between an ``AsyncCheckpointer`` and its native writer there is no such copy: the state's bytes go straight to their
places in the files' images (:mod:`cairn._pending.async_saver`). The stagers here are for writers of somebody else's.
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

_ALIGNMENT_BYTES = 64  # of a tensor in the buffer; every dtype's


class CheckpointStager(abc.ABC):
    """Makes still copies of states."""

    @abc.abstractmethod
    def stage(
        self,
        state_dict: STATE_DICT,
        **kwargs: Any,
    ) -> STATE_DICT | Future[STATE_DICT]:
        """A copy of `state_dict`, or a future of one; until that is done the state must not change."""

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of what it holds."""


@dataclass
class CheckpointStagerConfig:
    """`use_async_staging`: the copy is made in the background, and ``stage`` returns a future of it.

    `use_shared_memory`: another process can be given the copy without copying it again. `use_pinned_memory`: the copy
    is in page-locked memory, where there is an accelerator and the memory is not shared. `use_non_blocking_copy`:
    copies from a device do not wait for one another. All are hints: none of them needs an accelerator.
    """

    use_pinned_memory: bool = True
    use_shared_memory: bool = True
    use_async_staging: bool = True
    use_non_blocking_copy: bool = True


class _Found(NamedTuple):
    """A tensor of the state, which keeps its id for itself, and another one that holds the storage that it had."""

    tensor: torch.Tensor
    still: torch.Tensor


class DefaultStager(CheckpointStager):
    """Copies all tensors of a state into one buffer of the CPU's memory, and everything else as ``copy.deepcopy`` does.

    Each copy has a buffer of its own, for as long as anybody holds a tensor of it: copies never overwrite each other.
    To be used by one thread.
    """

    def __init__(self, config: CheckpointStagerConfig | None = None) -> None:
        self._config = CheckpointStagerConfig() if config is None else config
        self._thread: ThreadPoolExecutor | None = None

    @property
    def config(self) -> CheckpointStagerConfig:
        """As it was given."""
        return self._config

    def stage(
        self,
        state_dict: STATE_DICT,
        **kwargs: Any,
    ) -> STATE_DICT | Future[STATE_DICT]:
        """As in CheckpointStager. `kwargs` are for other stagers.

        A tensor that is given other memory (``tensor.data = other``) meanwhile is staged as it was at the call.
        """
        found: dict[int, _Found] = {}
        _find_tensors(state_dict, found)
        if not self._config.use_async_staging:
            return self._copy(state_dict, found)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cairn-staging")
        return self._thread.submit(self._copy, state_dict, found)

    def close(self) -> None:
        """Waits for the copy that is being made."""
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
        copied_state: STATE_DICT = copy.deepcopy(state_dict, copies)  # what is in the memo is copied already
        return copied_state

    def _buffer(self, size: int) -> torch.Tensor:
        shared = self._config.use_shared_memory
        pinned = self._config.use_pinned_memory and not shared and _has_accelerator()
        buffer = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        if shared and size:
            buffer.share_memory_()  # type: ignore[no-untyped-call]
        return buffer


def _find_tensors(state: Any, found: dict[int, _Found]) -> None:
    """Plain tensors in nested mappings, lists and tuples, by id. Others are left to ``copy.deepcopy``."""
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
