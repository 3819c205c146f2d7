"""cairn.async_save: ``torch.distributed.checkpoint.async_save``, carried out by the engine.

1. The state is described and the ranks plan together, or agree that the last plan still fits (a small message each).
2. The tensors are copied into memory that is laid out as the files, by native threads.
3. A native process (``AsyncCheckpointerType.PROCESS``) or threads of this one complete, write and commit the files.

Python takes no part in step 3, and nothing is sent between ranks in it: their writers meet in the storage. So saves can
overlap on one process group, which needs no CPU backend.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from torch.distributed.checkpoint.filesystem import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.staging import AsyncStager, StagingOptions
from torch.distributed.checkpoint.staging import BlockingAsyncStager as StockBlockingStager
from torch.distributed.checkpoint.staging import DefaultStager as StockDefaultStager
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

from cairn._calls.save import save_now
from cairn._directory.location import local_directory
from cairn._failures.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._native.hooks import hooks_of, name_of, why_not_native
from cairn._native.planners import save_planning, why_save_planner_is_foreign
from cairn._native.storages import why_writer_is_foreign
from cairn._pending import pending_saves, queued_saves
from cairn._pending.async_saver import AsyncSaver, Observer
from cairn._pending.pending_saves import Follower, PendingSave, SaveFuture
from cairn._ranks.ranks import Ranks
from cairn._results.driver_attributes import fill_save_planner, fill_writer
from cairn._settings.setting_ranges import IoPriority, check_settings
from cairn._state.described import DescribedState, states_of
from cairn._telemetry import dcp_records, engine_use
from cairn.errors import Error, InvalidArgument
from cairn.filesystem import FileSystemWriter, save_options
from cairn.staging import BlockingAsyncStager, DefaultStager

_PathLike = str | os.PathLike[str]
_BLOCKING_STAGERS = (BlockingAsyncStager, StockBlockingStager, FileSystemWriter, StockWriter)
_BLOCKING_HOOKS = hooks_of(StockBlockingStager)
_STAGERS = (DefaultStager, StockDefaultStager)
_STAGING_HOOKS = hooks_of(StockDefaultStager)
ASYNCHRONOUS_STAGING = ", asynchronous staging"  # for engine_use: the call returned before the state was copied

_type_for_all: AsyncCheckpointerType | None = None  # whatever calls ask for
_savers: dict[bool, AsyncSaver] = {}  # by whether a process writes
_settings: dict[str, Any] = {}


@dataclass
class SaveResponse(AsyncSaveResponse):
    """What async_save returns where the state is staged later: torch's class, with the type of its second future."""

    staging_completion: "Future[None]"  # done when the state may change again
    upload_completion: SaveFuture  # type: ignore[assignment] # of the Metadata, where torch's annotation says None


if TYPE_CHECKING:
    # Not at run time: typing would keep these functions, and with their globals the savers, past the interpreter's end.
    @overload
    def async_save(
        state_dict: dict[str, Any],
        *,
        checkpoint_id: _PathLike | None = None,
        storage_writer: Any = None,
        planner: Any = None,
        process_group: Any = None,
        async_checkpointer_type: AsyncCheckpointerType = AsyncCheckpointerType.THREAD,
        async_stager: None = None,
        no_dist: bool = False,
        use_collectives: bool = True,
    ) -> SaveFuture: ...

    @overload
    def async_save(
        state_dict: dict[str, Any],
        *,
        checkpoint_id: _PathLike | None = None,
        storage_writer: Any = None,
        planner: Any = None,
        process_group: Any = None,
        async_checkpointer_type: AsyncCheckpointerType = AsyncCheckpointerType.THREAD,
        async_stager: AsyncStager,
        no_dist: bool = False,
        use_collectives: bool = True,
    ) -> SaveFuture | SaveResponse: ...


def async_save(  # noqa: PLR0913 - the signature is DCP's
    state_dict: dict[str, Any],
    *,
    checkpoint_id: _PathLike | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    async_checkpointer_type: AsyncCheckpointerType = AsyncCheckpointerType.THREAD,
    async_stager: AsyncStager | None = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> SaveFuture | SaveResponse:
    """Saves `state_dict` as :func:`cairn.save` does, but returns as soon as its bytes are copied.

    The signature is that of ``torch.distributed.checkpoint.async_save``, and so is what it returns: a future of the
    Metadata (:class:`cairn.SaveFuture`, whose ``progress()`` tells how far the save is), which is done when the
    checkpoint is durable and in place; or, with a stager that stages asynchronously (``DefaultStager`` with
    ``use_async_staging``), an AsyncSaveResponse with that future as ``upload_completion``, whose
    ``staging_completion`` tells when the state may change again (see :func:`cairn.staging_fence`). A tensor that is
    written to before it is copied fails the save, and its key is named. ``AsyncCheckpointerType.PROCESS`` finishes what
    is staged even if this process is killed; its directory must be one that all ranks see, and so with THREAD.

    At most two saves are under way at a time (:func:`cairn.configure_async_saves`); one more waits for the oldest.
    Saves into one directory commit in their order. Raises what fails before the save has begun, on every rank; what
    fails while this rank begins or stages (no room for its bytes, Ctrl-C) is raised here, and by the futures of the
    other ranks. What fails later is raised by the future, on every rank; if nobody asks the future, by the next save,
    which is then not made.

    The interpreter waits for all saves before it exits, and logs the failures that nobody asked for. The exit status
    stays that of the program, as with DCP, unless ``cairn.configure_async_saves(fail_at_exit=True)`` was called.
    Ctrl-C ends the waiting: a writer process goes on by itself, threads give their save up. A writer process also goes
    on after what ends the program at once (SIGTERM, ``os._exit``, ``exec``). A child made by fork saves by itself; its
    parent's futures are not for it.

    A planner, a storage or a stager of the caller's own class is used as in DCP, with threads. InvalidArgument if
    `async_checkpointer_type` is no AsyncCheckpointerType; ``cairn.install`` can replace it for all calls.
    """
    with dcp_records.in_call(
        "async_save",
        checkpoint_id=checkpoint_id,
        storage_writer=storage_writer,
        planner=planner,
        process_group=process_group,
    ):
        call = _Call(checkpoint_id, storage_writer, planner, process_group, no_dist, use_collectives)
        return _begin(state_dict, call, async_checkpointer_type, async_stager)


def _begin(
    state_dict: dict[str, Any], call: "_Call", async_checkpointer_type: AsyncCheckpointerType, stager: Any
) -> SaveFuture | SaveResponse:
    if stager is None and isinstance(call.storage_writer, AsyncStager):
        stager = call.storage_writer
    process = (_type_for_all or async_checkpointer_type) is AsyncCheckpointerType.PROCESS

    def state() -> dict[str, Any]:  # runs where an error reaches the other ranks too
        _check_type(async_checkpointer_type)
        return states_of(state_dict)

    foreign = why_save_planner_is_foreign(call.planner)
    foreign = foreign or why_writer_is_foreign(call.storage_writer, call.checkpoint_id)
    if not foreign and (stager is None or not why_not_native(stager, _BLOCKING_HOOKS, _BLOCKING_STAGERS)):
        pending = _start(state, call, process, asynchronous_staging=False)
        with dcp_records.in_call("maybe_synchronize_staging"):
            return pending.upload
    if not foreign and not why_not_native(stager, _STAGING_HOOKS, _STAGERS):
        later = stager._config.use_async_staging
        pending = _start(state, call, process, asynchronous_staging=later)
        stager._staging_future = pending.staging  # for its synchronize_staging()
        if later:
            return _response(pending.staging, pending.upload)
        with dcp_records.in_call("maybe_synchronize_staging"):
            return pending.upload
    return _save_what_is_staged(state, stager, call, process, foreign)


def configure_async_saves(  # noqa: PLR0913 - keywords, each with a default
    *,
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
    """How :func:`async_save` works in this process: the options of :class:`cairn.AsyncSaver`. Waits for what runs.

    The deadlines of saves that block are those of :func:`cairn.configure_saves`.
    """
    settings = {
        "generations": generations,
        "copy_threads": copy_threads,
        "deadline_seconds": deadline_seconds,
        "sync_deadline_seconds": sync_deadline_seconds,
        "publish_deadline_seconds": publish_deadline_seconds,
        "grace_seconds": grace_seconds,
        "nice": nice,
        "io_priority": io_priority,
        "torn_snapshot_alarm": torn_snapshot_alarm,
        "fail_at_exit": fail_at_exit,
        "heed_memory_limits": heed_memory_limits,
    }
    check_settings(**settings)
    pending_saves.wait_for()
    for saver in _savers.values():
        saver.close()
    _savers.clear()
    _settings.update(settings)


def prepare_async_saves(
    state_dict: dict[str, Any], async_checkpointer_type: AsyncCheckpointerType = AsyncCheckpointerType.THREAD
) -> "Future[None]":
    """Makes memory, and the writer, ready in the background for saves of a state like this one.

    Without it the first save waits for its memory, which the system hands out more slowly than it is filled later.
    """
    _check_type(async_checkpointer_type)
    process = (_type_for_all or async_checkpointer_type) is AsyncCheckpointerType.PROCESS
    return _saver(process).prepare(states_of(state_dict))


def use_checkpointer_type(wanted: AsyncCheckpointerType | None) -> None:
    """For ``cairn.install``: makes all saves use this type; None lets them ask for one. InvalidArgument for others."""
    global _type_for_all  # noqa: PLW0603
    if wanted is not None:
        _check_type(wanted)
    _type_for_all = wanted


class _Call(NamedTuple):
    """The arguments of async_save that ``save`` has too."""

    checkpoint_id: _PathLike | None
    storage_writer: Any
    planner: Any
    process_group: Any
    no_dist: bool
    use_collectives: bool


def _check_type(wanted: object) -> None:
    if not isinstance(wanted, AsyncCheckpointerType):
        raise InvalidArgument(
            "async_checkpointer_type is a member of AsyncCheckpointerType",
            expected="AsyncCheckpointerType.THREAD or AsyncCheckpointerType.PROCESS",
            actual=repr(wanted),
        )


def _saver(process: bool) -> AsyncSaver:
    if process not in _savers:
        _savers[process] = AsyncSaver(process=process, **_settings)
    return _savers[process]


def _start(
    make_state: Callable[[], dict[str, Any]],
    call: _Call,
    process: bool,
    *,
    asynchronous_staging: bool,
    is_staged: bool = False,
) -> PendingSave:
    """`is_staged`: the caller's stager has made the state, and that is recorded already."""
    with as_checkpoint_exceptions() as here:
        ranks = Ranks(call.process_group, call.no_dist)
        here.rank = ranks.rank
        saver = _saver(process)
        together = ranks.options if call.use_collectives else {"alone_as_rank": ranks.rank}

        def fill(save_id: str, metadata: Metadata) -> None:
            fill_save_planner(call.planner, metadata, ranks.rank)
            fill_writer(call.storage_writer, save_id, ranks.rank, use_collectives=call.use_collectives)

        try:
            with Follower(_members(ranks, call)) as follower:
                with ranks.preparing(saver.abandon if call.use_collectives else None):
                    pending_saves.raise_untold()
                    planning = save_planning(call.planner)
                    directory, options = save_options(call.checkpoint_id, call.storage_writer)
                    state = make_state()
                    described = DescribedState(state, record_paths=planning["record_paths"])
                    follower.start()
                records = dcp_records.UploadRecords(
                    ranks.rank == 0 or not call.use_collectives,
                    directory,
                    list(state),
                    checkpoint_id=call.checkpoint_id,
                    storage_writer=call.storage_writer,
                    planner=call.planner,
                    process_group=call.process_group,
                )
                with contextlib.nullcontext() if is_staged else dcp_records.in_call("stage_state_dict"):
                    pending = saver.start(
                        described,
                        directory,
                        follower,
                        asynchronous_staging=asynchronous_staging,
                        observer=Observer(records.uploading, fill),
                        **planning,
                        **options,
                        **together,
                    )
            writers = "writer process" if process else "threads"
            engine_use.note("async_save", directory, writers + (ASYNCHRONOUS_STAGING if asynchronous_staging else ""))
            return pending
        except Error as error:
            pending_saves.note_told(error)
            raise


def _members(ranks: Ranks, call: _Call) -> tuple[int, ...]:
    """Who makes the save together."""
    return ranks.members if call.use_collectives else ()


def _save_what_is_staged(
    state: Callable[[], dict[str, Any]], stager: Any, call: _Call, process: bool, foreign: str
) -> SaveFuture | SaveResponse:
    """With a stager of the caller's own, or a `foreign` planner or storage, which the engine does not know.

    What is staged at once, for the engine, is copied once more: the stager may use its memory for the next save.
    """
    stager = stager or DefaultStager(StagingOptions(False, False, False, False))

    def stage() -> Any:
        live = state()
        return _staged(stager, live)

    with as_checkpoint_exceptions() as here:
        ranks = Ranks(call.process_group, call.no_dist)
        here.rank = ranks.rank
        own = Ranks(queued_saves.group_of_our_own(call.process_group, call.no_dist), call.no_dist)
        with Follower(_members(ranks, call)) as follower:
            try:
                staged = queued_saves.stage(ranks, own, follower, stage)
            except BaseException as error:
                pending_saves.note_told(error)
                raise
            if not foreign and not isinstance(staged, Future):
                pending = _start(lambda: staged, call, process, asynchronous_staging=False, is_staged=True)
            else:
                given = call.checkpoint_id or getattr(call.storage_writer, "path", None) or ""
                directory = str(local_directory(given) or given)
                reason = "" if foreign else f"{name_of(type(stager))} stages asynchronously"
                if process:
                    reason = f"threads write, not the writer process that was asked for{reason and ': '}{reason}"
                arguments = call._replace(process_group=own.group)._asdict()
                save = functools.partial(save_now, **arguments, call="async_save", reason=reason)
                pending = queued_saves.enqueue(own, directory, staged, follower, save)
                pending.fails_exit = _settings.get("fail_at_exit", False)
    if isinstance(staged, Future):
        return _response(pending.staging, pending.upload)
    return pending.upload


def _staged(stager: Any, state: dict[str, Any]) -> Any:
    """What the stager makes of `state`, or a future of it; complete, unless the caller is to synchronise by himself.

    torch starts its upload thread first and synchronises then, so that the thread may read buffers that are not filled
    yet. For the stager and for the caller the order is the same: ``stage``, ``synchronize_staging``, return.
    """
    with dcp_records.in_call("stage_state_dict"):
        staged = stager.stage(state)
    if isinstance(staged, Future):
        return staged
    with dcp_records.in_call("maybe_synchronize_staging"):
        if stager.should_synchronize_after_execute:
            stager.synchronize_staging()
    return staged


def _response(staging: "Future[None]", upload: SaveFuture) -> SaveResponse:
    return SaveResponse(staging_completion=staging, upload_completion=upload)


def _forget() -> None:  # in a forked child: none of them is its own
    _savers.clear()
    _settings.pop("fail_at_exit", None)  # asked for the parent's exit status
    queued_saves.forget()


os.register_at_fork(after_in_child=_forget)
