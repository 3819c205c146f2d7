"""AsyncSaver: background saves by the engine, in a native process or in threads, as Python futures. DefaultSavers: the
two AsyncSavers that ``cairn.async_save`` uses in this process, and their settings."""

import contextlib
import functools
import logging
import os
import signal
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar

from torch.distributed.checkpoint.metadata import Metadata

from cairn import _engine
from cairn._async import pending_saves
from cairn._async.pending_saves import PendingSave, SaveFuture
from cairn._directory import real_path
from cairn._process import ProcessPart
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.exception_record import Reason
from cairn._results.lazy_metadata import LazyMetadata, catalog_of_save
from cairn._settings import IoPriority, check_settings
from cairn._state.described import DescribedState, HeldState, check_order
from cairn._state.described_files import SavedFile
from cairn._state.notes import notes_text
from cairn._telemetry.ended_calls import Stopwatch
from cairn.progress import Progress

_PathLike = str | os.PathLike[str]
_T = TypeVar("_T")
_log = logging.getLogger("cairn")


def writer_executable() -> str:
    """Returns the path of the native writer that was installed with the package; $CAIRN_WRITER overrides the path."""
    return os.environ.get("CAIRN_WRITER") or str(Path(__file__).parents[1] / "bin" / "cairn-writer")


class Observer(NamedTuple):
    """Callbacks of a save that runs in the background."""

    #: Entered when the state is staged; left when the save has ended, with the save's error if the save failed.
    uploading: Callable[[], contextlib.AbstractContextManager[None]]
    #: Called with the save's id (hexadecimal) and metadata, before the upload future is done.
    on_written: Callable[[str, Metadata], None]


class AsyncSaver:
    """The memory for staged bytes, reused from save to save, and the writer of the bytes.

    `process`: a native process writes, started at the first use; the process finishes the staged bytes even if this
    process is killed. False: threads write, and die with this process. `generations`: the number of saves that may be
    in flight at a time, each with memory for the whole state; another save waits for the oldest.

    `deadline_seconds`, `sync_deadline_seconds`, `publish_deadline_seconds`: a save fails on every rank when one of its
    calls into the storage has not returned within the limit for a write; for an fsync, which shows no bytes; for a call
    that opens, renames, lists or removes a file. `deadline_seconds` also limits the time between signs of life of a
    rank or a writer, and the time between staged bytes of a trainer. `grace_seconds`: the time in which the writer
    process may finish the staged bytes after a SIGTERM.

    `nice` (0 to 19) and `io_priority` (of a process) lower the writer's priority below the training's, from the moment
    when the call no longer waits for the copy. `torn_snapshot_alarm`: with asynchronous staging, a save fails if its
    tensors were written to before they were copied; a write to a few elements may go unnoticed. `heed_memory_limits`:
    before a save takes memory for staged bytes, the limits of the memory cgroups and of the machine are checked;
    without room for another copy of the state, the save waits for an earlier save, or raises NoSpace. `fail_at_exit`:
    the process exits with status 1 in place of 0 if a save has failed and no caller retrieved its error, or if Ctrl-C
    ended the wait for a save. `sharing`: an open saver whose memory the new saver uses too, in place of memory of its
    own.

    As a context manager, AsyncSaver waits at the end of the block for its saves and closes itself. Then the first error
    that no caller retrieved is raised; if the block raises, the block's exception passes, with a note about the save.
    `fail_at_exit` is True for the saves of the block: ``sys.exit(0)`` in the block does not hide a failure.

    Only one thread may call save() at a time. A forked child must make an AsyncSaver of its own.
    """

    def __init__(  # noqa: PLR0913 - the settings of configure_async_saves
        self,
        *,
        process: bool = True,
        generations: int = 2,
        deadline_seconds: float = 300.0,
        sync_deadline_seconds: float = 1800.0,
        publish_deadline_seconds: float = 600.0,
        grace_seconds: float = 30.0,
        nice: int = 10,
        io_priority: IoPriority | None = None,
        torn_snapshot_alarm: bool = True,
        fail_at_exit: bool = False,
        heed_memory_limits: bool = True,
        sharing: "AsyncSaver | None" = None,
    ) -> None:
        check_settings(
            generations=generations,
            deadline_seconds=deadline_seconds,
            sync_deadline_seconds=sync_deadline_seconds,
            publish_deadline_seconds=publish_deadline_seconds,
            grace_seconds=grace_seconds,
            nice=nice,
            io_priority=io_priority,
            torn_snapshot_alarm=torn_snapshot_alarm,
            fail_at_exit=fail_at_exit,
            heed_memory_limits=heed_memory_limits,
        )
        self._deadlines = (float(deadline_seconds), float(sync_deadline_seconds), float(publish_deadline_seconds))
        self._process: _engine.WriterProcess | None = None
        if process:
            executable = os.fsencode(writer_executable())
            self._process = _engine.WriterProcess(executable, grace_seconds, nice, io_priority or "")
        memory = (generations, heed_memory_limits)
        self._native: _engine.AsyncCheckpointer = _engine.AsyncCheckpointer(
            self._process, memory, nice, sharing._native if sharing else None
        )
        self._torn_snapshot_alarm = torn_snapshot_alarm
        self._fail_at_exit = fail_at_exit
        self._saves: list[PendingSave] = []  # in flight, or failed with an error that no caller retrieved

    def __enter__(self) -> "AsyncSaver":
        self._fail_at_exit = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the saves of this object, and closes it. Raises the first error that no caller retrieved."""
        for save in self._saves:
            pending_saves.await_end(save.upload)
        failed = [save for save in self._saves if save.upload.has_unretrieved_exception]
        self.close()
        if not failed:
            return
        if error is None:
            failed[0].upload.result()  # raises
        else:
            cause = Future.exception(failed[0].upload)  # Future's own method: the error stays marked as not retrieved
            _add_note(error, f"an asynchronous save into '{failed[0].directory}' failed as well: {cause}")

    @property
    def writer_pid(self) -> int | None:
        """The process id of the writer process; None if no writer process is used or running."""
        return (self._process.pid or None) if self._process is not None else None

    def start_writer(self) -> None:
        """Starts the writer process, if one is used and none is running. Raises Unavailable."""
        if self._process is not None:
            self._process.start()

    def kill_writer(self) -> None:
        """Kills the writer process. Saves in flight fail with Unavailable unless they are committed; the next save
        starts a new process. Does nothing without a running process."""
        if self._process is not None and self._process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def save(
        self,
        state_dict: Mapping[Any, Any],
        directory: _PathLike,
        *,
        asynchronous_staging: bool = False,
        notes: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> PendingSave:
        """Saves a nested state unchanged. `notes` are those of :func:`cairn.save`. `options` are the engine's: durable,
        overwrite, alone_as_rank, collectives...

        Returns when the state may change again. With `asynchronous_staging`, returns at once, and the state must not
        change until the staging future is done. Raises the failures up to the return; the upload future holds later
        failures.
        """
        check_order("AsyncSaver.save", state_dict, directory, directory_argument="")
        options["notes"] = notes_text(notes)
        described = DescribedState(state_dict, from_devices=True)
        with pending_saves.Follower() as follower:
            follower.start()
            return self.start(described, directory, follower, asynchronous_staging=asynchronous_staging, **options)

    def start(
        self,
        described: HeldState,
        directory: _PathLike,
        follower: pending_saves.Follower,
        *,
        asynchronous_staging: bool,
        observer: Observer | None = None,
        files: list[SavedFile] | None = None,
        **options: Any,
    ) -> PendingSave:
        """As save(), with a described state. The follower must have started.

        `observer` is called in the follower's thread. `files`: the save writes no checkpoint of DCP, but these files of
        this rank, whose tensors `described` holds in their order; the upload future's Metadata then has no meaning.
        """
        watch = Stopwatch("saved in the background")
        options.setdefault("checkpoint_id", os.fspath(directory))
        terms = (asynchronous_staging, self._torn_snapshot_alarm, described, files)
        native = self._native.save(
            os.fsencode(directory), described.native, terms, deadlines=self._deadlines, **options
        )
        place = real_path(directory)
        upload = SaveFuture(lambda: Progress(*native.progress()))
        together = options.get("collectives")
        share = (options.get("alone_as_rank") or 0, 1) if together is None else (together.rank, together.size)

        def log(size: int) -> None:
            watch.log(directory, size, *share)

        save = PendingSave(place, Future(), upload, follower.turn, self._fail_at_exit, native.fence, log)
        self._saves = [*filter(pending_saves.is_pending, self._saves), save]
        save.staging.set_running_or_notify_cancel()
        if not asynchronous_staging:
            save.staging.set_result(None)
        kept: list[HeldState] = [described] if asynchronous_staging else []
        rank = options.get("alone_as_rank")
        follower.follow(save, functools.partial(self._follow, save, native, kept, rank, observer))
        return save

    def abandon(self, reason: Reason, /, *, of_files: bool = False, **options: Any) -> NoReturn:
        """For a rank without a state: takes part in a save of all ranks, `of_files` or of a checkpoint, with `reason`.
        Raises the error that all ranks get."""
        self._native.abandon_save(reason, of_files, **options)
        raise AssertionError("abandon_save raises")

    def prepare(self, state_dict: Mapping[Any, Any]) -> "Future[None]":
        """Prepares the memory for a state like `state_dict` and the writer, in the background.

        The first save is then as quick as the later ones. Only shapes are read; keep the state until the future is
        done.
        """
        described = DescribedState(state_dict, from_devices=True)
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

    def prepare_ahead(self, size: int, idle_seconds: float) -> None:
        """Prepares `size` bytes of memory and the writer for the first save, in a thread of the engine at low priority.

        Does nothing after the first save. The memory stays within the memory limits. The memory is freed when the
        limits leave little room, and if no save has come within `idle_seconds`. Raises Unavailable without a thread.
        """
        self._native.prepare_ahead(size, idle_seconds)

    @property
    def prepared_bytes(self) -> int:
        """The bytes of memory that are ready for the next save."""
        return self._native.free_bytes()

    def close(self) -> None:
        """Waits for running saves, whose futures get their results, and ends the writer process."""
        self._native.close()
        del self._native, self._process  # the destructor ends the process

    def leave(self) -> None:
        """Waits for nothing: leaves the saves in flight alone. Only for a saver that is used no more."""
        self._native.detach()

    def _follow(
        self,
        save: PendingSave,
        native: _engine.AsyncSave,
        kept: list[HeldState],
        rank: int | None,
        observer: Observer | None,
    ) -> None:
        """Completes both futures in every case. Clears `kept` when the bytes are staged."""
        uploading = contextlib.nullcontext if observer is None else observer.uploading
        try:
            if not save.staging.done():
                if not _wait(native.wait_copied):
                    native.leave()
                    self._leave(save)
                    return
                native.confirm(kept[0].keys_of_moved())
                while not native.wait_staged(pending_saves.WAIT_SLICE_SECONDS):
                    pass
        except BaseException as error:
            save.staging.set_exception(error)
            uploading = contextlib.nullcontext
        else:
            if not save.staging.done():
                save.staging.set_result(None)
            save.make_wait = None
        kept.clear()
        native.release()
        texts: list[str] = []  # of warnings
        try:
            with uploading(), as_checkpoint_exceptions():
                written = _wait(native.wait_written)
            if written is None:
                self._leave(save)
                return
            save_id, is_here, size, texts = written
            source = native.catalog if is_here else functools.partial(catalog_of_save, save.directory, save_id, rank)
            metadata = LazyMetadata(source)
            if observer is not None:
                observer.on_written(save_id, metadata)
            if save.log is not None:
                save.log(size)
            save.upload.set_result(metadata)
        except BaseException as error:
            save.upload.set_exception(error)
        for text in texts:  # last: a warning may be raised as an error
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _leave(self, save: PendingSave) -> None:
        self._native.detach()
        goes_on = self._process is not None and save.staging.done()
        fate = "continues in its writer process" if goes_on else "is cancelled"
        _log.warning("the program ends during its save into '%s', which %s", save.directory, fate)


def _add_note(error: BaseException, note: str) -> None:
    add = getattr(error, "add_note", None)  # since Python 3.11
    if add is None:
        _log.error("%s", note)
    else:
        add(note)


def _wait(wait: Callable[[float], _T]) -> _T:
    """Returns the result of `wait`; a false result if the interpreter ends before the save."""
    while not (answer := wait(pending_saves.WAIT_SLICE_SECONDS)):
        if pending_saves.is_leaving():
            break
    return answer


class DefaultSavers(ProcessPart):
    """`by_process`: the saver with a writer process (True) and the saver with threads, each made at its first use. The
    second uses the memory of the first."""

    def __init__(self) -> None:
        self.by_process: dict[bool, AsyncSaver] = {}
        self.settings: dict[str, Any] = {}

    def in_child(self) -> "DefaultSavers":
        """A child keeps the settings, but for `fail_at_exit`: that was asked for the parent's exit status."""
        child = DefaultSavers()
        child.settings = {name: value for name, value in self.settings.items() if name != "fail_at_exit"}
        return child

    def saver(self, process: bool) -> AsyncSaver:
        """The saver with or without a writer process."""
        if process not in self.by_process:
            other = self.by_process.get(not process)
            self.by_process[process] = AsyncSaver(process=process, sharing=other, **self.settings)
        return self.by_process[process]

    def configure(self, settings: dict[str, Any]) -> None:
        """Waits for all saves of this process, and makes new savers at their next use."""
        pending_saves.wait_for()
        for saver in self.by_process.values():
            saver.close()
        self.by_process.clear()
        self.settings.update(settings)
