"""cairn.async_save: ``torch.distributed.checkpoint.async_save``, carried out by the engine.

1. The state is described. The ranks plan together, or agree that the last plan still fits (a small message each).
2. Native threads copy the tensors into memory that is laid out as the files.
3. A native process (``AsyncCheckpointerType.PROCESS``) or threads of this process complete, write and commit the files.

Step 3 runs no Python code and sends nothing between ranks: the writers coordinate through files in the storage.
Therefore saves can overlap on one process group, which needs no CPU backend.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from torch.distributed.checkpoint.filesystem import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.staging import BlockingAsyncStager as StockBlockingStager

from cairn._async import pending_saves, preparation, queued_saves
from cairn._async.async_saver import DefaultSavers, Observer
from cairn._async.pending_saves import Follower, PendingSave, SaveFuture
from cairn._calls.arguments import Call
from cairn._calls.save import save_now
from cairn._directory import local_directory
from cairn._process import part
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.ranks import Ranks
from cairn._results.driver_attributes import fill_save_planner, fill_writer
from cairn._settings import Installation, IoPriority, check_settings, is_single_writer
from cairn._state.described import DescribedState, check_order, states_of
from cairn._state.notes import notes_text, plain_notes
from cairn._telemetry import dcp_records, engine_use
from cairn._torch_names.torch_floor import AsyncCheckpointerType, AsyncSaveResponse, StagingOptions
from cairn._torch_names.torch_floor import DefaultStager as StockDefaultStager
from cairn._torch_protocol.hooks import hooks_of, name_of, why_not_native
from cairn._torch_protocol.planners import save_planning, takes_raw_values, why_save_planner_is_foreign
from cairn._torch_protocol.storages import why_writer_is_foreign, writes_model
from cairn.errors import Error, InvalidArgument
from cairn.filesystem import FileSystemWriter, save_options
from cairn.staging import BlockingAsyncStager, DefaultStager

_PathLike = str | os.PathLike[str]
_BLOCKING_STAGERS = (BlockingAsyncStager, StockBlockingStager, FileSystemWriter, StockWriter)
_BLOCKING_HOOKS = hooks_of(StockBlockingStager)
_STAGERS = (DefaultStager, StockDefaultStager)
_STAGING_HOOKS = hooks_of(StockDefaultStager)
ASYNCHRONOUS_STAGING = ", asynchronous staging"  # for engine_use: the call returned before the state was copied


@dataclass
class SaveResponse(AsyncSaveResponse):
    """The result of async_save with asynchronous staging: torch's class, with the type of the second future."""

    staging_completion: "Future[None]"  # done when the state may change again
    upload_completion: SaveFuture  # type: ignore[assignment] # a future of the Metadata; torch's annotation says None


if TYPE_CHECKING:
    # Not at run time: typing would keep these functions, and through their globals the savers, past the interpreter's
    # end.
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
        notes: Mapping[str, Any] | None = None,
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
        notes: Mapping[str, Any] | None = None,
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
    notes: Mapping[str, Any] | None = None,
) -> SaveFuture | SaveResponse:
    """Saves `state_dict` as :func:`cairn.save` does, but returns as soon as the bytes are copied.

    The signature and the result are those of ``torch.distributed.checkpoint.async_save``. The result is a future of the
    Metadata (:class:`cairn.SaveFuture`, with the save's ``progress()``), which is done when the checkpoint is durable
    and in place. With a stager that stages asynchronously (``DefaultStager`` with ``use_async_staging``), the result is
    an AsyncSaveResponse: ``upload_completion`` is the future of the Metadata, and ``staging_completion`` is done when
    the state may change again (see :func:`cairn.staging_fence`). Writing to a tensor before the tensor is copied fails
    the save, with an error that names the tensor's key. ``AsyncCheckpointerType.PROCESS`` finishes the staged bytes
    even if this process is killed. With PROCESS and with THREAD, all ranks must see the directory.

    At most two saves are in flight at a time (:func:`cairn.configure_async_saves`); a third save waits for the oldest.
    Saves into one directory commit in their order.

    Errors: a failure before the save has begun is raised here, on every rank. A failure while this rank begins or
    stages (no room for its bytes, Ctrl-C) is raised here, and by the futures of the remaining ranks. A later failure is
    raised by the future, on every rank; if no caller asks the future, the next save raises the error and saves nothing.

    The interpreter waits for all saves before the process exits, and logs the failures that no caller retrieved. The
    exit status stays the program's, as with DCP, unless ``cairn.configure_async_saves(fail_at_exit=True)`` was called.
    Ctrl-C ends the waiting: a writer process continues alone, threads cancel their save. A writer process also
    continues after a sudden end of the program (SIGTERM, ``os._exit``, ``exec``). A forked child makes saves of its own
    and can't wait for its parent's futures.

    `notes` are those of :func:`cairn.save`; they are read before this call returns.

    A planner, a storage or a stager of the caller's own class is used as in DCP, with threads. Raises InvalidArgument
    if `async_checkpointer_type` is no AsyncCheckpointerType; ``cairn.install`` can replace the type for all calls.
    """
    check_order("async_save", state_dict, checkpoint_id)
    call = Call(
        checkpoint_id,
        storage_writer,
        planner,
        process_group,
        no_dist,
        use_collectives,
        function="async_save",
        notes=notes,
    )
    with dcp_records.in_call("async_save", **call.recorded("storage_writer")):
        return _begin(state_dict, call, async_checkpointer_type, async_stager)


def save_of_run(
    state_dict: dict[str, Any],
    directory: _PathLike,
    async_checkpointer_type: AsyncCheckpointerType,
    *,
    process_group: Any,
    no_dist: bool,
    notes: Mapping[str, Any],
) -> SaveFuture:
    """As async_save(), into a directory that the program has not chosen: a pinned checkpoint there fails the save with
    Unavailable."""
    call = Call(
        directory, None, None, process_group, no_dist, function="async_save", notes=notes, overwrite_pinned=False
    )
    with dcp_records.in_call("async_save", **call.recorded("storage_writer")):
        future = _begin(state_dict, call, async_checkpointer_type, None)
    assert isinstance(future, SaveFuture)
    return future


def save_of_saver(
    make_state: Callable[[], dict[str, Any]],
    call: Call,
    when_written: Callable[[], None],
    *,
    asynchronous_staging: bool,
) -> PendingSave:
    """Begins a save by a writer process, for a saver of another package.

    An error of `make_state` reaches the remaining ranks. `when_written` is called in the thread that follows the save,
    after the commit and before the upload future is done. An error of `when_written` becomes the future's error.
    """
    process = _writes_in_process(AsyncCheckpointerType.PROCESS)
    with dcp_records.in_call("async_save", **call.recorded("storage_writer")):
        return _start(make_state, call, process, asynchronous_staging=asynchronous_staging, when_written=when_written)


def _begin(
    state_dict: dict[str, Any], call: Call, async_checkpointer_type: AsyncCheckpointerType, stager: Any
) -> SaveFuture | SaveResponse:
    if stager is None and isinstance(call.storage, AsyncStager):
        stager = call.storage
    process = _writes_in_process(async_checkpointer_type)

    def state() -> dict[str, Any]:  # runs where an error also reaches the remaining ranks
        check_type(async_checkpointer_type)
        return states_of(state_dict)

    foreign = why_save_planner_is_foreign(call.planner)
    foreign = foreign or why_writer_is_foreign(call.storage, call.checkpoint_id)
    foreign = foreign or ("a thread saves a safetensors model" if writes_model(call.storage) else "")
    if not foreign and (stager is None or not why_not_native(stager, _BLOCKING_HOOKS, _BLOCKING_STAGERS)):
        pending = _start(state, call, process, asynchronous_staging=False)
        with dcp_records.in_call("maybe_synchronize_staging"):
            return pending.upload
    if not foreign and not why_not_native(stager, _STAGING_HOOKS, _STAGERS):
        later = stager._config.use_async_staging
        pending = _start(state, call, process, asynchronous_staging=later)
        stager._staging_future = pending_saves.Fence(pending)  # for the stager's synchronize_staging()
        if later:
            return _response(pending.staging, pending.upload)
        with dcp_records.in_call("maybe_synchronize_staging"):
            return pending.upload
    return _save_what_is_staged(state, stager, call, process, foreign)


def configure_async_saves(  # noqa: PLR0913 - keywords, each with a default
    *,
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
) -> None:
    """Sets how :func:`async_save` works in this process. Waits for running saves.

    The options are those of :class:`cairn.AsyncSaver`, which describes them. The reasons to set an option:

    - `generations`: 1 if there is no memory for two copies of the state; more if saves follow each other quickly.
    - `deadline_seconds`, `sync_deadline_seconds`, `publish_deadline_seconds`: less, to learn sooner that the storage
      hangs; more, for storage whose single calls take longer. The deadlines of blocking saves are set with
      :func:`cairn.configure_saves`.
    - `grace_seconds`: less than the time between the scheduler's SIGTERM and its SIGKILL.
    - `nice`, `io_priority`: if the writer slows the training down, or if the writer gets too little of the machine.
    - `torn_snapshot_alarm`: False if the program knowingly changes tensors that are being staged.
    - `fail_at_exit`: True if the scheduler goes by the exit status.
    - `heed_memory_limits`: False if the machine states less available memory than it has, as with the cache of ZFS.
    """
    settings = {
        "generations": generations,
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
    part(DefaultSavers).configure(settings)
    preparation.renew()


def prepare_async_saves(
    state_dict: dict[str, Any], async_checkpointer_type: AsyncCheckpointerType = AsyncCheckpointerType.THREAD
) -> "Future[None]":
    """Prepares memory and the writer, in the background, for saves of a state like `state_dict`.

    Without preparation, the first save waits for its memory; the system allocates memory more slowly than later saves
    fill it. Returns a future that is done when everything is ready.
    """
    check_type(async_checkpointer_type)
    process = _writes_in_process(async_checkpointer_type)
    return part(DefaultSavers).saver(process).prepare(states_of(state_dict))


def check_type(wanted: object) -> None:
    """Raises InvalidArgument if `wanted` is no AsyncCheckpointerType."""
    if not isinstance(wanted, AsyncCheckpointerType):
        raise InvalidArgument(
            "async_checkpointer_type must be a member of AsyncCheckpointerType",
            expected="AsyncCheckpointerType.THREAD or AsyncCheckpointerType.PROCESS",
            actual=repr(wanted),
        )


def _writes_in_process(asked: AsyncCheckpointerType) -> bool:
    """Whether a writer process writes, for a call that asks for a type."""
    return (part(Installation).async_checkpointer_type or asked) is AsyncCheckpointerType.PROCESS


def _start(
    make_state: Callable[[], dict[str, Any]],
    call: Call,
    process: bool,
    *,
    asynchronous_staging: bool,
    is_staged: bool = False,
    when_written: Callable[[], None] | None = None,
) -> PendingSave:
    """Starts a save by the engine. `is_staged`: the caller's stager made the state, and the telemetry has its record
    already. `when_written`: as for save_of_saver()."""
    with as_checkpoint_exceptions() as here:
        ranks = Ranks(call.process_group, call.no_dist)
        here.rank = ranks.rank
        saver = part(DefaultSavers).saver(process)
        together = ranks.options if call.use_collectives else {"alone_as_rank": ranks.rank}

        def fill(save_id: str, metadata: Metadata) -> None:
            fill_save_planner(call.planner, metadata, ranks.rank)
            fill_writer(call.storage, save_id, ranks.rank, use_collectives=call.use_collectives)
            if when_written is not None:
                when_written()

        try:
            with Follower(_members(ranks, call)) as follower:
                with ranks.preparing(saver.abandon if call.use_collectives else None):
                    pending_saves.raise_unretrieved()
                    planning = save_planning(call.planner)
                    directory, options = save_options(call.checkpoint_id, call.storage)
                    options["overwrite_pinned"] = call.overwrite_pinned
                    options["single_writer"] = is_single_writer()
                    text = notes_text(call.notes)
                    state = make_state()
                    described = DescribedState(
                        state,
                        record_paths=planning["record_paths"],
                        raw_values=takes_raw_values(call.planner),
                        from_devices=True,
                    )
                    follower.start()
                records = dcp_records.UploadRecords(
                    ranks.rank == 0 or not call.use_collectives,
                    directory,
                    list(state),
                    **call.recorded("storage_writer"),
                )
                with contextlib.nullcontext() if is_staged else dcp_records.in_call("stage_state_dict"):
                    pending = saver.start(
                        described,
                        directory,
                        follower,
                        asynchronous_staging=asynchronous_staging,
                        observer=Observer(records.uploading, fill),
                        notes=text,
                        **planning,
                        **options,
                        **together,
                    )
            writers = "writer process" if process else "threads"
            engine_use.note(call.function, directory, writers + (ASYNCHRONOUS_STAGING if asynchronous_staging else ""))
            return pending
        except Error as error:
            pending_saves.note_report(error)
            raise


def _members(ranks: Ranks, call: Call) -> tuple[int, ...]:
    """Returns the ranks that make the save together; empty for a rank that saves alone."""
    return ranks.members if call.use_collectives else ()


def _save_what_is_staged(
    state: Callable[[], dict[str, Any]], stager: Any, call: Call, process: bool, foreign: str
) -> SaveFuture | SaveResponse:
    """Saves with a stager of the caller's own, or with a `foreign` planner or storage that the engine does not know.

    For a save by the engine, a state that was staged at once is copied a second time: the stager may reuse its memory
    for the next save.
    """
    stager = stager or DefaultStager(StagingOptions(False, False, False, False))

    notes: list[dict[str, Any] | None] = []  # as they are now: the save may begin later

    def stage() -> Any:
        live = state()
        notes.append(plain_notes(call.notes))
        return _staged(stager, live)

    with as_checkpoint_exceptions() as here:
        ranks = Ranks(call.process_group, call.no_dist)
        here.rank = ranks.rank
        queue = queued_saves.queue_for(call.process_group, call.no_dist)
        own = Ranks(queue.group_instead_of(call.process_group), call.no_dist)
        with Follower(_members(ranks, call)) as follower:
            try:
                staged = queue.stage(ranks, follower, stage)
            except BaseException as error:
                pending_saves.note_report(error)
                raise
            if not foreign and not isinstance(staged, Future):
                pending = _start(lambda: staged, call, process, asynchronous_staging=False, is_staged=True)
            else:
                given = call.checkpoint_id or getattr(call.storage, "path", None) or ""
                directory = str(local_directory(given) or given)
                reason = "" if foreign else f"{name_of(type(stager))} stages asynchronously"
                if process:
                    reason = f"threads write in place of the requested writer process{reason and ': '}{reason}"
                save = functools.partial(
                    save_now, call=call._replace(process_group=own.group, notes=notes[-1]), reason=reason
                )
                pending = queue.enqueue(own, directory, staged, follower, save)
                pending.fails_exit = part(DefaultSavers).settings.get("fail_at_exit", False)
    if isinstance(staged, Future):
        return _response(pending.staging, pending.upload)
    return pending.upload


def _staged(stager: Any, state: dict[str, Any]) -> Any:
    """Returns the stager's state, or a future of the state. A state is complete, unless the caller synchronises the
    stager.

    torch starts its upload thread before the synchronisation, and the thread may read incomplete buffers. Here the
    stager and the caller see the order of torch: ``stage``, ``synchronize_staging``, return; the upload starts
    afterwards.
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
