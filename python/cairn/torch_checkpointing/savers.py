"""Savers with the names of torch_checkpointing, carried out by the engine."""

import functools
from concurrent.futures import Future
from typing import Any, NoReturn, Protocol

from torch_checkpointing import checkpoint_saver as theirs
from torch_checkpointing.checkpoint_base import CheckpointBase
from torch_checkpointing.checkpoint_process import CheckpointProcess
from torch_checkpointing.checkpoint_writer import CheckpointWriter
from torch_checkpointing.metadata_manager import MetadataManager
from torch_checkpointing.staging import CheckpointStager

from cairn._async.pending_saves import PendingSave, await_end
from cairn._telemetry import engine_use
from cairn._torch_names.replacements import stands_for_base
from cairn.errors import Unavailable, Unsupported
from cairn.torch_checkpointing import dcp_files, item_files
from cairn.torch_checkpointing.file_choice import Files, chosen
from cairn.torch_checkpointing.saver_terms import (
    ItemsToSave,
    SaverTerms,
    refuse_with_ours,
    terms_of_process,
    terms_of_writer,
    why_stock,
)
from cairn.torch_checkpointing.write_future import WriteFuture

_DEFAULT_WAIT_SECONDS = 600.0


class WaitTimeout(Unavailable, TimeoutError, RuntimeError):
    """The previous save did not end within the saver's ``wait_timeout_secs``. (torch_checkpointing raises
    RuntimeError.)"""


class _Writer(Protocol):
    """The modules that write: :mod:`item_files` and :mod:`dcp_files`."""

    def begin_save(self, save: ItemsToSave, *, asynchronous_staging: bool) -> PendingSave: ...

    def save_now(self, save: ItemsToSave) -> None: ...


_WRITERS: dict[Files, _Writer] = {"theirs": item_files, "ours": dcp_files}


def why_stock_saves(terms: SaverTerms, files: Files) -> str:
    """Returns the reason why torch_checkpointing's own code saves; "" if the engine saves.

    Raises Unsupported if the files are ours, and an argument asks for a hook that the engine can't honour.
    """
    reason = why_stock(terms)
    if reason and files == "ours":
        refuse_with_ours(reason)
    return reason


@stands_for_base
class AsyncCheckpointSaver(theirs.AsyncCheckpointSaver):
    """Saves in the background.

    The engine copies the state while :attr:`staging_lock` is held for writing, and a native process, which survives
    this process, writes while the lock is held for reading. ``files`` is "theirs" or "ours", None as
    :func:`install` says. A part of the caller's own class, and files that the engine does not write, leave the saves to
    torch_checkpointing's own code: ``cairn.report()`` has the reason. With files="ours" such a part raises Unsupported.
    `why_stock`: a reason that the parts do not show.
    """

    def __init__(
        self,
        checkpoint_stager: CheckpointStager,
        checkpoint_process: CheckpointProcess,
        metadata_manager: MetadataManager | None = None,
        lock_acquire_timeout: float = _DEFAULT_WAIT_SECONDS,
        *,
        files: Files | None = None,
        why_stock: str = "",
    ) -> None:
        super().__init__(checkpoint_stager, checkpoint_process, metadata_manager, lock_acquire_timeout)
        self._files = chosen(files)
        self._terms = terms_of_process(checkpoint_stager, checkpoint_process, metadata_manager)
        self._why_stock = why_stock or why_stock_saves(self._terms, self._files)
        self._wait_seconds = lock_acquire_timeout
        self._previous: PendingSave | None = None
        self._is_closed = False

    def save(
        self,
        path: str,
        checkpoint: CheckpointBase,
        validate_state_dict: bool = False,
    ) -> tuple[Future[Any], Future[Any]]:
        """Saves the items of `checkpoint` in directory `path`. Returns two futures, done with None: the state may
        change when the first is done, and the checkpoint is durable and in place when the second is done.

        Waits for the previous save of this saver; if that failed, raises its error once, on all ranks, and saves
        nothing. The engine checks in every save that no tensor was written to before its copy, which
        `validate_state_dict` asks for. Raises WaitTimeout, and RuntimeError after close().
        """
        if self._is_closed:
            raise RuntimeError("Cannot save with a closed AsyncCheckpointSaver")
        if self._why_stock:
            futures: tuple[Future[Any], Future[Any]] = super().save(path, checkpoint, validate_state_dict)
            engine_use.note("torch_checkpointing.async_save", path, self._why_stock, engine=False, expected=False)
            return futures
        is_free = self._staging_lock.write.acquire(True, self._wait_seconds)
        before = self._raise_error_of_previous if is_free else functools.partial(self._raise_time_out, path)
        try:
            save = ItemsToSave(str(path), checkpoint.get_items(), self._terms, before)
            asynchronous = self._terms.staging is None or self._terms.staging.use_async_staging
            pending = _WRITERS[self._files].begin_save(save, asynchronous_staging=asynchronous)
        except BaseException:
            if is_free:
                self._previous = self._write_future = None  # its error, if any, has been raised
                self._staging_lock.write.release()
            raise
        written = WriteFuture(pending)
        self._previous = pending
        self._write_future = written
        pending.staging.add_done_callback(functools.partial(self._hold_until_written, pending, written))
        return pending.staging, written

    def stage(self, checkpoint: CheckpointBase) -> Future[Any]:
        """As in torch_checkpointing. The engine keeps no copy of a state apart from a save: raises Unsupported where
        the engine saves."""
        if not self._why_stock:
            raise Unsupported("the engine copies no state apart from a save: prewarm_staging() prepares its memory")
        return super().stage(checkpoint)

    def close(self) -> None:
        """Waits for the save in flight. Its future has the result."""
        if not self._is_closed and self._previous is not None:
            await_end(self._previous.upload)
        self._is_closed = True
        super().close()

    def _raise_time_out(self, path: str) -> NoReturn:
        raise WaitTimeout(
            f"the save into '{path}' was given up after {self._wait_seconds:g} seconds of waiting for the previous "
            f"save, or for a block under lock(): save less often, or give the saver a longer wait_timeout_secs"
        )

    def _raise_error_of_previous(self) -> None:
        previous, self._previous, self._write_future = self._previous, None, None
        if previous is not None:
            previous.upload.result()

    def _hold_until_written(self, pending: PendingSave, written: WriteFuture, _: Future[Any]) -> None:
        """The state is copied, or the copy has failed: holds the lock for reading, until the save has ended."""
        self._staging_lock.downgrade()

        def end(_: Future[Any]) -> None:
            self._staging_lock.read.release()
            written.end()

        Future.add_done_callback(pending.upload, end)


@stands_for_base
class SyncCheckpointSaver(theirs.SyncCheckpointSaver):
    """Saves, and returns when the checkpoint is durable and in place. `files` is as for AsyncCheckpointSaver."""

    def __init__(
        self,
        writer: CheckpointWriter,
        metadata_manager: MetadataManager | None = None,
        *,
        files: Files | None = None,
        why_stock: str = "",
    ) -> None:
        super().__init__(writer, metadata_manager)
        self._files = chosen(files)
        self._terms = terms_of_writer(writer, metadata_manager)
        self._why_stock = why_stock or why_stock_saves(self._terms, self._files)

    def save(self, path: str, checkpoint: CheckpointBase) -> tuple[Future[Any], Future[Any]] | None:
        """Saves the items of `checkpoint` in directory `path`. Returns None."""
        if self._why_stock:
            super().save(path, checkpoint)
            engine_use.note("torch_checkpointing.save", path, self._why_stock, engine=False, expected=False)
            return None
        _WRITERS[self._files].save_now(ItemsToSave(str(path), checkpoint.get_items(), self._terms))
        return None
