"""TorchAsyncCheckpoint, with the name of ``nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt``."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from cairn._state.tensor_memory import check_memory_of_all
from cairn.errors import InvalidArgument
from cairn.nvrx.async_ckpt.core import AsyncCallsQueue, AsyncRequest

_PathLike = str | os.PathLike[str]


class TorchAsyncCheckpoint:
    """``torch.save`` in the background. As in NVRx.

    The file is written under another name, synced and renamed: an interrupted save leaves an older file as it was.
    `persistent_queue`: one spawned process saves; otherwise a process is forked for each save.
    """

    def __init__(self, persistent_queue: bool = True) -> None:
        self._queue = AsyncCallsQueue(persistent=persistent_queue)

    def save(self, state_dict: Any, path: _PathLike, **kwargs: Any) -> None:
        """Saves before the return. Raises InvalidArgument for a tensor whose memory was freed."""
        check_memory_of_all(state_dict)
        save_durably(state_dict, path, kwargs)

    def async_save(self, state_dict: Any, path: _PathLike, **kwargs: Any) -> int:
        """Copies the state, and saves it in the background. Returns the index of the save."""
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidArgument("an asynchronous save takes a path", actual=type(path).__name__)
        check_memory_of_all(state_dict)
        state = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), state_dict)
        return self._queue.schedule_async_request(AsyncRequest(save_durably, (state, os.fspath(path), kwargs), []))

    def finalize_async_save(self, blocking: bool = False, no_dist: bool = True, terminate: bool = False) -> None:
        """Raises the error of a save that has failed; `blocking`: waits for all saves. `terminate`: ends the
        process too."""
        self._queue.maybe_finalize_async_calls(blocking, no_dist)
        if terminate:
            self.close()

    def close(self, abort: bool = False) -> None:
        """Waits for the saves and ends the process. `abort`: ends the process at once, with its save."""
        self._queue.close(abort=abort)


def save_durably(state_dict: Any, path: _PathLike, keywords: dict[str, Any]) -> None:
    """``torch.save`` into a new file, which is synced and then takes the place of `path`."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            torch.save(state_dict, stream, **keywords)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
