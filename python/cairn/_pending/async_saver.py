"""AsyncSaver: saves in the background by the engine, in a native process or in threads, as Python futures."""

import contextlib
import functools
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar

from torch.distributed.checkpoint.metadata import Metadata

from cairn import _engine
from cairn._directory.opening import open_checkpoint
from cairn._directory.real_path import real_path
from cairn._failures.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._failures.exception_record import Reason
from cairn._pending import pending_saves
from cairn._pending.pending_saves import PendingSave, SaveFuture
from cairn._results.lazy_metadata import LazyMetadata
from cairn._settings.setting_ranges import IoPriority, check_settings
from cairn._state.described import DescribedState
from cairn._state.state_argument import check_order
from cairn.errors import Replaced
from cairn.progress import Progress

_PathLike = str | os.PathLike[str]
_T = TypeVar("_T")
_log = logging.getLogger("cairn")
_SLICE_SECONDS = 0.2


def writer_executable() -> str:
    """The native writer, as it is installed with the package; $CAIRN_WRITER names another."""
    return os.environ.get("CAIRN_WRITER") or str(Path(__file__).parents[1] / "bin" / "cairn-writer")


class Observer(NamedTuple):
    """Hears of a save that runs in the background."""

    #: Entered when the state is staged, left when the save has ended, with its error if it failed.
    uploading: Callable[[], contextlib.AbstractContextManager[None]]
    #: Gets the save's id (hexadecimal) and metadata, before the upload future is done.
    on_written: Callable[[str, Metadata], None]


class AsyncSaver:
    """The memory for staged bytes, kept from save to save, and who writes them.

    `process`: a native process of its own, started when it is first needed, which finishes what is staged even if this
    process is killed; otherwise threads, which die with it. `generations`: how many saves may be under way at a time,
    each with memory for the whole state; a save beyond that waits for the oldest. `copy_threads`: that stage; 0 for one
    per core. `deadline_seconds`, `sync_deadline_seconds`, `publish_deadline_seconds`: a save is given up on every rank
    when one of its calls into the storage has not returned for so long: a write; an fsync, which shows no bytes; a call
    that opens, renames, lists or removes something. The first is also the limit for a sign of life of a rank or a
    writer, and for the next bytes of a trainer that stages. `grace_seconds`: after a SIGTERM the writer process
    finishes what is staged, but not longer than this. `nice` (0 to 19) and `io_priority` (of a process): how far the
    writer stands back behind the training, from when the call does not wait for the copy any more.
    `torn_snapshot_alarm`: with asynchronous staging, a save fails if its tensors were written to before they were
    copied; a write to a few elements may go unnoticed. `heed_memory_limits`: before memory is taken for staged bytes,
    the limits of the memory cgroups and of the machine are looked at; without room for another copy of the state, a
    save waits for an earlier one, or raises NoSpace. `fail_at_exit`: the process exits with status 1, where it would
    with 0, if at its end a save has failed whose error no caller was told, or a save has not ended because Ctrl-C ended
    the waiting for it.

    As a context manager it waits at the end of the block for its saves and closes itself. Then the first error of a
    save that no caller was told is raised; if the block raises, that exception goes on instead, with a note about the
    save. `fail_at_exit` is True for the saves of such a block, so that ``sys.exit(0)`` in it does not hide a failure.

    Saves come from one thread at a time. A forked child makes its own.
    """

    def __init__(  # noqa: PLR0913 - the settings of configure_async_saves
        self,
        *,
        process: bool = True,
        generations: int = 2,
        copy_threads: int = 0,
        deadline_seconds: float = 300.0,
        sync_deadline_seconds: float = 1800.0,
        publish_deadline_seconds: float = 600.0,
        grace_seconds: float = 30.0,
        nice: int = 10,
        io_priority: IoPriority | None = None,
        torn_snapshot_alarm: bool = True,
        fail_at_exit: bool = False,
        heed_memory_limits: bool = True,
    ) -> None:
        check_settings(
            generations=generations,
            copy_threads=copy_threads,
            deadline_seconds=deadline_seconds,
            sync_deadline_seconds=sync_deadline_seconds,
            publish_deadline_seconds=publish_deadline_seconds,
            grace_seconds=grace_seconds,
            nice=nice,
            io_priority=io_priority,
            torn_snapshot_alarm=torn_snapshot_alarm,
            fail_at_exit=fail_at_exit,
        )
        self._deadlines = (float(deadline_seconds), float(sync_deadline_seconds), float(publish_deadline_seconds))
        self._process: _engine.WriterProcess | None = None
        if process:
            executable = os.fsencode(writer_executable())
            self._process = _engine.WriterProcess(executable, grace_seconds, nice, io_priority or "")
        self._native = _engine.AsyncCheckpointer(self._process, (generations, copy_threads, heed_memory_limits), nice)
        self._torn_snapshot_alarm = torn_snapshot_alarm
        self._fail_at_exit = fail_at_exit
        self._saves: list[PendingSave] = []  # under way, or failed and not told

    def __enter__(self) -> "AsyncSaver":
        self._fail_at_exit = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the saves of this object, and closes it. Raises the first error that no caller was told."""
        for save in self._saves:
            pending_saves.await_end(save.upload)
        failed = [save for save in self._saves if save.upload.has_untold_error]
        self.close()
        if not failed:
            return
        if error is None:
            failed[0].upload.result()  # raises
        else:
            cause = Future.exception(failed[0].upload)  # as of a Future: the error stays one that is to be told
            _add_note(error, f"an asynchronous save into '{failed[0].directory}' failed as well: {cause}")

    @property
    def writer_pid(self) -> int | None:
        """Of the writer process; None if there is none, or it does not run."""
        return (self._process.pid or None) if self._process is not None else None

    def save(
        self, state_dict: Mapping[Any, Any], directory: _PathLike, *, asynchronous_staging: bool = False, **options: Any
    ) -> PendingSave:
        """Saves a nested state as it is. `options` are the engine's: durable, overwrite, alone_as_rank, collectives...

        Returns when the state may change again; with `asynchronous_staging` at once, and then the state must stay as it
        is until the staging future is done. Raises what fails until then; what fails later is in the upload future.
        """
        check_order("AsyncSaver.save", state_dict, directory, directory_argument="")
        described = DescribedState(state_dict)
        with pending_saves.Follower() as follower:
            follower.start()
            return self.start(described, directory, follower, asynchronous_staging=asynchronous_staging, **options)

    def start(
        self,
        described: DescribedState,
        directory: _PathLike,
        follower: pending_saves.Follower,
        *,
        asynchronous_staging: bool,
        observer: Observer | None = None,
        **options: Any,
    ) -> PendingSave:
        """As save(), of a state that is described already. The follower has started.

        `observer` is called in the follower's thread.
        """
        options.setdefault("checkpoint_id", os.fspath(directory))
        terms = (asynchronous_staging, self._torn_snapshot_alarm, described)
        native = self._native.save(
            os.fsencode(directory), described.native, terms, deadlines=self._deadlines, **options
        )
        place = real_path(directory)
        upload = SaveFuture(lambda: Progress(*native.progress()))
        save = PendingSave(place, Future(), upload, follower.turn, self._fail_at_exit)
        self._saves = [*filter(pending_saves.is_of_interest, self._saves), save]
        save.staging.set_running_or_notify_cancel()
        if not asynchronous_staging:
            save.staging.set_result(None)
        kept = [described] if asynchronous_staging else []
        rank = options.get("alone_as_rank")
        follower.follow(save, functools.partial(self._follow, save, native, kept, rank, observer))
        return save

    def abandon(self, reason: Reason, /, **options: Any) -> NoReturn:
        """For a rank without a state: takes its part in a save of all ranks with the reason. Raises what all get."""
        self._native.abandon_save(reason, **options)
        raise AssertionError("abandon_save raises")

    def prepare(self, state_dict: Mapping[Any, Any]) -> "Future[None]":
        """Makes the memory for a state like this one and the writer ready, in the background.

        The first save is then as quick as any. Only shapes are looked at; keep the state until the future is done.
        """
        described = DescribedState(state_dict)
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            try:
                self._native.prepare(described.native)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        pending_saves.in_background(work)
        return future

    def close(self) -> None:
        """Waits for what is under way, which tells its futures how it ended, and lets the writer process go."""
        self._native.close()
        del self._native, self._process  # which ends the process

    def _follow(
        self,
        save: PendingSave,
        native: _engine.AsyncSave,
        kept: list[DescribedState],
        rank: int | None,
        observer: Observer | None,
    ) -> None:
        """Brings both futures to their end, whatever happens. What is `kept` goes when it is staged."""
        uploading = contextlib.nullcontext if observer is None else observer.uploading
        try:
            if not save.staging.done():
                if not _wait(native.wait_copied):
                    native.leave()
                    self._leave(save)
                    return
                native.confirm(kept[0].keys_of_moved())
                while not native.wait_staged(_SLICE_SECONDS):
                    pass
        except BaseException as error:
            save.staging.set_exception(error)
            uploading = contextlib.nullcontext
        else:
            if not save.staging.done():
                save.staging.set_result(None)
        kept.clear()
        native.release()
        remarks: list[str] = []
        try:
            with uploading(), as_checkpoint_exceptions():
                written = _wait(native.wait_written)
            if written is None:
                self._leave(save)
                return
            save_id, is_here, _, remarks = written
            source = native.catalog if is_here else functools.partial(_catalog_in, save.directory, save_id, rank)
            metadata = LazyMetadata(source)
            if observer is not None:
                observer.on_written(save_id, metadata)
            save.upload.set_result(metadata)
        except BaseException as error:
            save.upload.set_exception(error)
        for remark in remarks:  # last: a warning may be an error
            warnings.warn(remark, RuntimeWarning, stacklevel=2)

    def _leave(self, save: PendingSave) -> None:
        self._native.detach()
        goes_on = self._process is not None and save.staging.done()
        fate = "goes on in its writer process" if goes_on else "is given up"
        _log.warning("the program ends before its save into '%s', which %s", save.directory, fate)


def _add_note(error: BaseException, note: str) -> None:
    add = getattr(error, "add_note", None)  # since Python 3.11
    if add is None:
        _log.error("%s", note)
    else:
        add(note)


def _wait(wait: Callable[[float], _T]) -> _T:
    """What the engine tells at last; nothing, if the interpreter ends without waiting for it."""
    while not (told := wait(_SLICE_SECONDS)):
        if pending_saves.leaving.is_set():
            break
    return told


def _catalog_in(directory: str, save_id: str, rank: int | None) -> _engine.Catalog:
    checkpoint = open_checkpoint(directory, rank)
    if checkpoint.save_id != save_id:
        raise Replaced("a later save has taken the place of this one, whose metadata only the coordinator has kept")
    return _engine.catalog_of(checkpoint)
