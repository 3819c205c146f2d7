"""CheckpointManager: the checkpoints of a run. Saves when due, keeps by a rule, stops at a signal, resumes."""

import atexit
import contextlib
import datetime
import json
import logging
import math
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsFloat, SupportsIndex

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from cairn import _engine
from cairn._async import pending_saves
from cairn._async.pending_saves import SaveFuture
from cairn._calls.async_save import save_of_run
from cairn._calls.load import load
from cairn._directory import existing_directory, real_path
from cairn._ranks.checkpoint_exceptions import failures_of
from cairn._ranks.ranks import Ranks, reason_of
from cairn._run_arguments import SaveEvery, check_seconds, number_of, numbers_of, raising_of, schedule_of, state_of
from cairn._state.notes import notes_text
from cairn._torch_names import modules
from cairn._torch_names.torch_floor import AsyncCheckpointerType
from cairn.errors import (
    Corrupt,
    Error,
    InvalidArgument,
    NotFound,
    Replaced,
    Unavailable,
    Unsupported,
    UnusableDirectory,
)
from cairn.progress import Progress, show_progress
from cairn.retention import retention_rule
from cairn.warnings import DamageWarning

_Best = tuple[str, Literal["min", "max"]] | tuple[str, Literal["min", "max"], int]
_log = logging.getLogger("cairn")
_NO, _SAVE, _STOP = range(3)  # the results of the engine's due()
_DAMAGE = (Corrupt, NotFound, Replaced)
_WAIT_SLICE_SECONDS = 0.2


class RunReport(NamedTuple):
    """What saving and failing have cost a run, in seconds, since its first start, as this rank sees it.

    `elapsed` counts all time except from the last save of a process that has closed its manager to the start of the
    next. `calls`: the training waited in calls that save, and in them for the end of the save before; of these seconds,
    `failed_saves` for saves that failed. `slower_steps`: steps beside a save in the background took so much longer than
    the mean of the other steps. `restarts`: from the last sign of life of a failed process to the first step of the
    next. `redone`: from the checkpoint to the failure, so training that was done again. `saves`, `failed`, `failures`:
    durable saves, failed saves, and restarts after a process that failed. `interval`: the automatic interval of saves
    now, 0 without. `good_share`: the share of `elapsed` in which the run trained for good.
    """

    elapsed: float
    calls: float
    slower_steps: float
    failed_saves: float
    restarts: float
    redone: float
    saves: int
    failed: int
    failures: int
    interval: float
    good_share: float


class _Warnings:
    """Takes warnings of the engine to the log, and those of damage that a call finds to a list."""

    def __init__(self) -> None:
        self._called: list[Error] | None = None
        self._caller = 0

    def __call__(self, error: Error) -> None:
        called = self._called if threading.get_ident() == self._caller else None
        if called is not None and isinstance(error, Corrupt):
            called.append(error)
        else:
            _log.warning("%s", error)

    def __enter__(self) -> list[Error]:
        self._called = []
        self._caller = threading.get_ident()
        return self._called

    def __exit__(self, *_: object) -> None:
        self._called = None


class CheckpointManager:
    """The checkpoints of a run below a directory `root`, a directory for each saved step.

    ::

        with cairn.CheckpointManager("runs/7", save_every=1000, keep_last=3) as manager:
            first = (manager.restore(state) or 0) + 1
            for step in range(first, steps + 1):
                train(step)
                manager.save(step, state, metrics={"loss": loss})
                if manager.preempted:
                    break

    `save_every`: a number of steps (a save at each multiple), a ``datetime.timedelta`` since the last save began, or
    "auto" (the interval of the least expected loss, from the costs and failures so far, between the two
    `interval_bounds`; `expected_between_failures` is the time between failures that is expected before the first), or a
    sequence of these; None: only saves with ``force=True`` and the save of a stop. `keep_last`, `keep_every`,
    `keep_best`, `newer_than`, `adopt`: as in :func:`cairn.prune`; without any, all checkpoints stay. Rank 0 removes the
    others in a thread of low priority, after the next save is durable on all ranks. `name`: of a step's directory, with
    the step as the number after the last "step" in the name, or as the last number. Checkpoints with other names in
    `root` count too, also those of ``torch.distributed.checkpoint``. A pinned checkpoint in the directory of a step is
    not replaced: the save of that step fails.

    `preemption_signals`: after one of them on any rank, all ranks save at the same step, and `preempted` is True.
    The handlers that were there before are called too, except Python's own of SIGINT, which would raise
    KeyboardInterrupt. A second arrival of a signal takes the action from before: SIGTERM then ends the process.
    `grace_seconds`: save() waits at most so long at a stop, for the save in flight and until the save of the stop
    is durable.

    `failures_in_a_row`: a failed save is a warning on the log `cairn`, until so many have failed one after the other;
    the next save then raises the error. A save with ``force=True`` is tried once more. `process`: a native process
    writes, and finishes its staged saves even if this process is killed; False: threads of this process write.
    `wait_seconds`: a restart waits so long for saves in flight of an earlier process. `agreement_seconds`: a rank that
    does not answer so long to an announced stop fails the next step of all ranks. `progress`: rank 0 shows bars, as
    :func:`cairn.show_progress`, until the manager is closed.

    A root has one manager at a time. Raises Unavailable if a living process manages `root`: at once if it is on this
    host, at the first save if it is on another host. All ranks of `process_group` make the same calls in the same order
    with the same steps, from one thread. `preempt`, `report` and the listing may be called from any thread and rank;
    `report` and the listing also after close().
    """

    def __init__(  # noqa: PLR0913 - keywords, each with a default
        self,
        root: str | os.PathLike[str],
        *,
        save_every: SaveEvery | Sequence[SaveEvery] | None = None,
        keep_last: int | None = None,
        keep_every: int | datetime.timedelta | None = None,
        keep_best: _Best | Sequence[_Best] | None = None,
        newer_than: datetime.timedelta | float | None = None,
        adopt: bool = False,
        name: str = "step-{step}",
        preemption_signals: Sequence[int] = (signal.SIGTERM,),
        grace_seconds: float = 25.0,
        failures_in_a_row: int = 3,
        process: bool = True,
        wait_seconds: float = 60.0,
        agreement_seconds: float = 30.0,
        interval_bounds: tuple[float, float] = (60.0, 4 * 3600.0),
        expected_between_failures: datetime.timedelta = datetime.timedelta(days=1),
        progress: bool = False,
        process_group: Any = None,
        no_dist: bool = False,
    ) -> None:
        rule = retention_rule(keep_last, keep_every, keep_best, newer_than)
        schedule = schedule_of(save_every, interval_bounds, expected_between_failures.total_seconds())
        for what, seconds in (
            ("grace_seconds", grace_seconds),
            ("wait_seconds", wait_seconds),
            ("agreement_seconds", agreement_seconds),
        ):
            check_seconds(what, seconds)
        place = Path(existing_directory(os.fspath(root))).absolute()
        self.root = real_path(place)
        self._ranks = _ranks_of(process_group, no_dist)
        self._call = {"process_group": process_group, "no_dist": no_dist}
        self._kind = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
        self._grace = grace_seconds
        self._warnings = _Warnings()
        self._save: SaveFuture | None = None  # the last one
        self._counted = threading.Event()  # the engine has counted the end of the last save
        self._counted.set()
        self._process_id = os.getpid()
        self._grace_ends = math.inf  # by the monotonic clock, after a stop
        self._preempted = False
        self._last_report: RunReport | None = None  # when the manager was closed
        store = None
        if self._ranks.are_many:
            from cairn._ranks.group_store import GroupStore

            with self._ranks.all_or_none("store"):
                store = GroupStore(process_group, min(10.0, agreement_seconds))
        kept = None if rule == retention_rule(None, None, None, None) else rule
        waits = (float(wait_seconds), float(agreement_seconds))
        signals = list(preemption_signals)
        settings = (schedule, name, kept, adopt, failures_in_a_row, *waits, signals, raising_of(signals))
        together = self._ranks.options.get("collectives")
        self._run = _engine.ManagedRun(os.fsencode(place), settings, together, store, self._warnings)
        self._display = show_progress() if progress else None
        if self._display is not None:
            weakref.finalize(self, self._display.close)
        self._finalizer = weakref.finalize(self, _close_quietly, self._run)
        self._finalizer.atexit = False
        atexit.register(self._finalizer)  # before torch's store and the interpreter go

    def __enter__(self) -> "CheckpointManager":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the manager. An exception of the block passes; the failure of the last save is then only logged.

        An exception on rank 0 counts as a failure of the run in the next process's report. SystemExit and
        KeyboardInterrupt do not.
        """
        if error is None:
            self.close()
            return
        try:
            self._close(has_failed=isinstance(error, Exception))
        except Error as failure:
            _log.error("closing the manager of '%s': %s", self.root, failure)

    @property
    def preempted(self) -> bool:
        """Whether the run should end: the ranks have agreed on a stop, and save() has made its save, or has failed
        to."""
        return self._preempted

    def preempt(self) -> None:
        """Stops the run as a signal does. From any thread of any rank."""
        self._run.request_stop()

    def should_save(self, step: SupportsIndex) -> bool:
        """Whether save() would save after `step`: for callers whose state is expensive to collect. As for save(), all
        ranks call it after each step."""
        return self._due(number_of(step)) != _NO

    def stops_at(self, step: SupportsIndex) -> bool:
        """Whether save() after `step` would be the save of a stop: for callers who do other work between a step and its
        save. As for should_save(), all ranks call it after each step."""
        return self._due(number_of(step)) == _STOP

    def save(
        self,
        step: SupportsIndex,
        state: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        metrics: Mapping[str, SupportsFloat] | None = None,
        *,
        notes: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> SaveFuture | None:
        """Ends `step`, and saves `state` in the background if a save is due, or with `force`. Returns the future of the
        save, or None if no save is due.

        All ranks call save() after each step. `state` is a state dict as for :func:`cairn.async_save`, or a function
        that makes it, called only for a save. `metrics` and `notes`, which must be JSON, are stored with the checkpoint
        (:attr:`cairn.Checkpoint.notes`), as given by rank 0. A metric may be a tensor of one element, which is read
        only for a save. A metric that is not finite is left out, with a warning.

        Waits for the end of the save before. A failed save is counted (`failures_in_a_row`), and its future has the
        error. Raises InvalidArgument and Unsupported at once if the state can't be saved, and an exception of the
        function `state` on all ranks. With the save of a stop, the call returns when the save is durable, or after
        `grace_seconds`; if the save before has not ended then, the save of the stop fails.
        """
        step = number_of(step)
        due = self._due_or_forced(step) if force else self._due(step)
        if due == _NO and not force:
            return None
        begun = time.monotonic()
        is_stop = due == _STOP or self._run.is_stop_requested()  # the ranks meet here, and may not have agreed before
        has_ended, stop_begun = self._finish_or_stop(begun, is_stop=is_stop)
        with self._dropped_if_not_made():
            start, is_stop = self._begin_on_all_ranks(
                step,
                lambda: self._run.begin(step, numbers_of(metrics), notes_text(notes), force, time.monotonic() - begun),
                has_ended=has_ended,
                stop_begun=stop_begun,
            )
            if start is None:
                self._run.dropped()
                return _failed_save(self._not_made(step))
            place, text = start
            with self._ranks.all_fail_together("state"):  # by then no rank is missing in the function's collectives
                made, stored = state_of(state), json.loads(text)
        try:
            future = self._begin(os.fsdecode(place), made, stored)
            if is_stop and not pending_saves.await_end(future, max(0.0, self._grace_ends - time.monotonic())):
                _log.warning("the save of step %d is not durable within %s s; its writer goes on", step, self._grace)
        finally:
            self._run.began()
        return future

    def restore(self, state: dict[str, Any], **load_options: Any) -> int | None:
        """Loads the newest good checkpoint into `state`, and returns its step. None if `root` holds no checkpoint.

        `load_options` are those of :func:`cairn.load`. A damaged checkpoint is passed over, with a DamageWarning on all
        ranks. Raises Corrupt if there are checkpoints and none can be loaded. Every other error of the load is raised
        at once: a missing key, a wrong shape, denied access. Waits up to `wait_seconds` for saves in flight.
        """
        self._check_ranks()
        reason = None
        while True:
            with self._warnings as passed_over:
                place = self._run.next_checkpoint(reason)
            for error in passed_over:
                warnings.warn(str(error), DamageWarning, stacklevel=2)
            if place is None:
                return None
            try:
                load(state, checkpoint_id=os.fsdecode(place), **self._call, **load_options)
            except Exception as error:
                if not _is_damage(error):
                    raise
                reason = reason_of(error)
            else:
                return self._run.resumed()

    def steps(self) -> list[int]:
        """Returns the steps of all whole checkpoints in `root`, ascending."""
        return self._run.steps()

    def latest_step(self) -> int | None:
        """Returns the step of the newest whole checkpoint, in the order of :func:`cairn.latest`."""
        return self._run.latest_step()

    def best_step(self, metric: str, order: Literal["min", "max"] = "min") -> int | None:
        """Returns the step with the smallest or largest value of a metric; of equal values the newer."""
        if order not in ("min", "max"):
            raise InvalidArgument("order must be 'min' or 'max'", actual=repr(order))
        return self._run.best_step(metric, order == "max")

    def metrics(self, step: SupportsIndex) -> dict[str, float]:
        """Returns the metrics of a step's checkpoint. Raises NotFound."""
        return self._run.metrics(number_of(step))

    def directory_of(self, step: SupportsIndex) -> str:
        """Returns the directory into which save() saves a step."""
        return os.fsdecode(self._run.directory_of(number_of(step)))

    def report(self) -> RunReport:
        """Returns what saving and failing have cost the run; after close(), up to close()."""
        return self._last_report or RunReport(*self._run.report())

    def wait(self) -> None:
        """Waits for the save in flight, and raises its error. After a stop waits at most to the end of the grace, and
        then raises Unavailable."""
        if not self._finish(self._grace_ends):
            raise Unavailable(f"the save in flight has not ended within the grace of {self._grace} s")
        if self._save is not None:
            self._save.result()

    def close(self) -> None:
        """Waits for the save in flight, leaves `root` to the next manager, and raises the error of the last save.

        After a stop the call waits at most to the end of the grace, and the writer goes on; the end of the process
        still waits for the writer. Rank 0 waits up to 10 s for a removal; the next manager goes on with it. In a child
        made by fork the call does nothing.
        """
        self._close(has_failed=False)

    def _close(self, *, has_failed: bool) -> None:
        if os.getpid() != self._process_id:
            return  # in a child made by fork: the save and the root are the parent's
        has_ended = False
        try:
            has_ended = self._finish(self._grace_ends)
        finally:
            if self._last_report is None:
                self._last_report = self.report()
            atexit.unregister(self._finalizer)
            self._finalizer.detach()
            try:
                self._run.close(has_failed)
            finally:
                if self._display is not None:
                    self._display.close()
        if self._save is not None and has_ended:
            self._save.result()

    def _due(self, step: int) -> int:
        self._check_ranks()
        return self._run.due(step)

    def _due_or_forced(self, step: int) -> int:
        """As _due(). If the ranks can't agree on stops any more, the save that the caller asks for is made all the
        same."""
        try:
            return self._due(step)
        except Unavailable as error:
            _log.warning("%s: the save of step %d, with force=True, is made", error, step)
            return _NO

    def _check_ranks(self) -> None:
        """Refuses a process group that the manager does not know: its saves would wait for other managers' ranks."""
        if not self._ranks.are_many and Ranks(**self._call).are_many:
            raise InvalidArgument(
                "the CheckpointManager was made before torch.distributed.init_process_group(): make it afterwards, or "
                "with no_dist=True for a process that saves alone"
            )

    def _begin(self, directory: str, state: dict[str, Any], notes: dict[str, Any]) -> SaveFuture:
        counted = threading.Event()
        try:
            future = save_of_run(state, directory, self._kind, notes=notes, **self._call)
            Future.add_done_callback(future, _Count(self._run, counted))
        except BaseException as error:  # the save before stays the last one, if the call raises
            if not isinstance(error, Exception):  # Ctrl-C
                self._run.dropped()
                raise
            self._run.ended(reason_of(error))
            if _is_lasting(error):
                raise
            counted.set()
            future = _failed_save(error)
        self._save, self._counted = future, counted
        return future

    def _finish(self, until: float = math.inf) -> bool:
        """Waits until the last save has ended and is counted. False if the save has not ended at `until`, by the
        monotonic clock."""
        if self._save is None:
            return True
        if not pending_saves.await_end(self._save, max(0.0, until - time.monotonic())):
            return False
        while not self._counted.wait(_WAIT_SLICE_SECONDS):
            pass
        self._save.exception()  # reported by the count
        return True

    def _finish_or_stop(self, begun: float, *, is_stop: bool) -> tuple[bool, float | None]:
        """Waits for the end of the save before: at a stop, also one that is asked for meanwhile, to the end of the
        grace. Returns whether it has ended, and when the grace of a stop began; None: this rank has not to stop."""
        while not self._finish(time.monotonic() + _WAIT_SLICE_SECONDS):
            if not is_stop and self._run.is_stop_requested():
                is_stop, begun = True, time.monotonic()
            if is_stop and time.monotonic() > begun + self._grace:
                return False, begun
        return True, begun if is_stop or self._run.is_stop_requested() else None

    def _begin_on_all_ranks(
        self, step: int, begin: Callable[[], tuple[bytes, str]], *, has_ended: bool, stop_begun: float | None
    ) -> tuple[tuple[bytes, str] | None, bool]:
        """Returns the result of `begin`, or None if the save before has not ended on a rank, and whether a rank has to
        stop. A failure of `begin` is raised on all ranks. `stop_begun`: None unless this rank has to stop."""
        start, failure = None, None
        try:
            start = begin() if has_ended else None
        except BaseException as error:
            failure = error
        standing = [int(failure is None), int(has_ended), int(stop_begun is None), step, -step]
        well, ended, goes_on, first, minus_last = self._ranks.smallest(standing)
        if not goes_on:
            self._run.agreed_to_stop()
            self._preempted = True
            self._grace_ends = (time.monotonic() if stop_begun is None else stop_begun) + self._grace
        if not well:
            with self._ranks.all_or_none("begin"):
                if failure is not None:
                    raise failure
        if first != -minus_last:  # a rank could not hear of an agreed step, or the program is wrong
            raise InvalidArgument(
                "the ranks save at different steps, and their states don't belong together",
                expected="one step",
                actual=f"the steps {first} to {-minus_last}",
            )
        return (start if ended else None), not goes_on

    def _not_made(self, step: int) -> Error:
        error = Unavailable(
            f"the save before the stop has not ended within the grace of {self._grace} s on all ranks: the save of "
            f"step {step} is not made, and the writer goes on with the save before"
        )
        _log.warning("%s", error)
        return error

    @contextlib.contextmanager
    def _dropped_if_not_made(self) -> Iterator[None]:
        """Wraps the work between the engine's begin() and the save."""
        try:
            yield
        except BaseException:
            self._run.dropped()
            raise


class _Count:
    """The callback of a save's future: tells the engine of the end. Holds no manager."""

    def __init__(self, run: "_engine.ManagedRun", counted: threading.Event) -> None:
        self._run = run
        self._counted = counted

    def __call__(self, future: "Future[Any]") -> None:
        try:
            error = Future.exception(future)
            self._run.ended(None if error is None else reason_of(error))
        finally:
            self._counted.set()


def _failed_save(error: Exception) -> SaveFuture:
    """Returns the future of a save that has failed within its call. A warning has reported the error."""
    failed = SaveFuture(lambda: Progress("ended", 0, 0))
    failed.set_exception(error)
    failed.exception()
    return failed


def _close_quietly(run: "_engine.ManagedRun") -> None:
    try:
        run.close(False)
    except Error as failure:
        _log.warning("%s", failure)


def _is_damage(error: Exception) -> bool:
    """Whether each rank that failed has found damage, and no rank another fault."""
    if not isinstance(error, Error) or error._is_of_entry:
        return False
    return all(isinstance(failure, _DAMAGE) for failure in _failures_in(error))


def _failures_in(error: Exception) -> list[BaseException]:
    """Returns the exception of each rank that has failed; of a process alone `error` itself."""
    failures = error.failures if isinstance(error, CheckpointException) else {}
    failures = failures or (failures_of(error) if isinstance(error, Error) else {})
    return [failure for failure, *_ in failures.values()] or [error]


def _ranks_of(process_group: Any, no_dist: bool) -> Ranks:
    """As Ranks(). Refuses a process that its launcher has started as one of several, and that has no process group yet:
    each rank would manage `root` alone."""
    ranks = Ranks(process_group, no_dist)
    size = os.environ.get("WORLD_SIZE", "")
    has_group = ranks.are_many or no_dist or not dist.is_available() or dist.is_initialized()
    if not has_group and "RANK" in os.environ and size not in ("", "1"):
        raise InvalidArgument(
            "this process is one of several ranks, and has no process group yet: make the CheckpointManager after "
            "torch.distributed.init_process_group(), or with no_dist=True if this process saves alone",
            actual=f"WORLD_SIZE={size}",
        )
    return ranks


def _is_lasting(error: Exception) -> bool:
    """Whether every later save would fail too. A directory that the system refuses may be of a file system that is
    read-only for a while."""
    return any(
        isinstance(failure, (InvalidArgument, Unsupported)) and not isinstance(failure, UnusableDirectory)
        for failure in _failures_in(error)
    )


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
