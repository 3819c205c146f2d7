"""Checkpointers: objects that save and load the state of this rank alone."""

import abc
import contextlib
from concurrent.futures import Future
from typing import Any

from cairn._async.pending_saves import SaveFuture
from cairn.checkpointer.argument_order import path_and_state
from cairn.checkpointer.checkpoint_process import CheckpointProcess
from cairn.checkpointer.checkpoint_reader import CheckpointReader
from cairn.checkpointer.checkpoint_writer import CheckpointWriter
from cairn.checkpointer.completion import Completion, wrap_future
from cairn.checkpointer.rank_info import STATE_DICT
from cairn.checkpointer.staging import CheckpointStager, DefaultStager
from cairn.errors import Error, MissingKey


class MissingKeys(MissingKey, RuntimeError):
    """The checkpoint lacks keys of the given state dict. (torch raises RuntimeError.)"""


class Checkpointer(abc.ABC):
    """Saves and loads states. `save` takes its two arguments in either order, distinguished by type."""

    @abc.abstractmethod
    def save(
        self,
        path: str,
        state_dict: STATE_DICT,
        **kwargs: Any,
    ) -> tuple[Future[Any], Future[Any]] | None:
        """Saves `state_dict` in directory `path`. `kwargs` go to the stager, the process and the writer. Cairn's
        process and writer store the keyword `notes`, a dict as for :func:`cairn.save`, in the rank's checkpoint.

        Returns None if the save is complete, or two futures: the state may change when the first is done, and the
        checkpoint is durable when the second is done. The futures' results have no meaning.
        """

    @abc.abstractmethod
    def load(
        self,
        path: str,
        state_dict: STATE_DICT | None = None,
        *,
        default_map_location: Any = None,
        strict: bool = False,
        **kwargs: Any,
    ) -> STATE_DICT:
        """Returns the saved state; or `state_dict`, filled by the rules of ``CheckpointReader.read``.

        `strict`: raises MissingKeys (a RuntimeError) if `state_dict` has keys that the checkpoint lacks; all remaining
        keys are loaded even then. `kwargs` go to the reader.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the resources of this object."""


class SyncCheckpointer(Checkpointer):
    """Saves, and returns when the save is complete."""

    def __init__(self, writer: CheckpointWriter, reader: CheckpointReader) -> None:
        self._writer = writer
        self._reader = reader

    def save(
        self,
        path: str,
        state_dict: STATE_DICT,
        **kwargs: Any,
    ) -> tuple[Future[Any], Future[Any]] | None:
        """As in Checkpointer. Returns None."""
        path, state_dict = path_and_state(path, state_dict)
        written = self._writer.write(path=path, state_dict=state_dict, **kwargs)
        if isinstance(written, Future):
            written.result()
        return None

    def load(
        self,
        path: str,
        state_dict: STATE_DICT | None = None,
        *,
        default_map_location: Any = None,
        strict: bool = False,
        **kwargs: Any,
    ) -> STATE_DICT:
        """As in Checkpointer."""
        return _load(self._reader, path, state_dict, default_map_location, strict, kwargs)

    def close(self) -> None:
        """Closes the writer."""
        self._writer.close()


class AsyncCheckpointer(Checkpointer):
    """Saves in the background, one state after the other.

    With a DefaultStager and the native CheckpointProcess, the state's bytes are staged directly into the memory from
    which the process writes, without another copy. Any other stager or process is used by its own methods.
    """

    def __init__(
        self,
        checkpoint_stager: CheckpointStager,
        checkpoint_process: CheckpointProcess,
        reader: CheckpointReader,
    ) -> None:
        self._stager = checkpoint_stager
        self._process = checkpoint_process
        self._reader = reader
        self._last: Completion | SaveFuture | None = None

    def save(
        self,
        path: str,
        state_dict: STATE_DICT,
        **kwargs: Any,
    ) -> tuple[Future[Any], Future[Any]]:
        """As in Checkpointer. First waits for the previous save; if that failed, raises its error once, and saves
        nothing.

        The futures can't be cancelled. With the native process the second future has ``progress()``.
        """
        path, state_dict = path_and_state(path, state_dict)
        last = self._last
        if last is not None:
            try:
                last.result()
            finally:
                if last.done():  # after Ctrl-C during the wait, the save stays the previous save
                    self._last = None
        stager = self._stager
        if type(stager) is DefaultStager and type(self._process) is CheckpointProcess and self._process.is_native:
            asynchronous = stager.config.use_async_staging
            pending = self._process.save_live(
                state_dict, path, asynchronous_staging=asynchronous, notes=kwargs.get("notes")
            )
            self._last = pending.upload
            return pending.staging, pending.upload
        staged = stager.stage(state_dict=state_dict, **kwargs)
        self._last = wrap_future(self._process.write(staged, path, **kwargs))
        return wrap_future(staged), self._last

    def load(
        self,
        path: str,
        state_dict: STATE_DICT | None = None,
        *,
        default_map_location: Any = None,
        strict: bool = False,
        **kwargs: Any,
    ) -> STATE_DICT:
        """As in Checkpointer. Does not wait for a save in flight. Begins to prepare memory for the first save."""
        loaded = _load(self._reader, path, state_dict, default_map_location, strict, kwargs)
        if type(self._stager) is DefaultStager and type(self._process) is CheckpointProcess:
            with contextlib.suppress(Error):  # a state that can't be saved: the save says so
                self._process.prepare_for(loaded)
        return loaded

    def close(self) -> None:
        """Waits for the last save, closes stager and process, and raises the save's error if no caller has retrieved
        the error."""
        try:
            self._stager.close()
        finally:
            self._process.close()
        last, self._last = self._last, None
        if last is not None and not last.exception_retrieved:
            last.result()


def _load(
    reader: CheckpointReader,
    path: str,
    state_dict: STATE_DICT | None,
    map_location: Any,
    strict: bool,
    keywords: dict[str, Any],
) -> STATE_DICT:
    path, state_dict = path_and_state(path, state_dict)
    loaded, missing = reader.read(path=path, state_dict=state_dict, map_location=map_location, **keywords)
    if strict and missing:
        raise MissingKeys(f"Checkpoint at {path} is missing keys: {missing}", key=missing[0])
    return loaded
