"""FileSystemWriter and FileSystemReader: DCP's, with equal arguments and attributes, carried out by the engine.

Each class derives from torch's class, to satisfy ``isinstance`` checks. Each class is also a plug-in for
``torch.distributed.checkpoint`` itself, which then plans and coordinates while the engine writes and reads.
"""

import contextlib
import os
import pickle
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from torch.distributed.checkpoint.filesystem import FileSystemReader as StockReader
from torch.distributed.checkpoint.filesystem import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from cairn import _engine
from cairn._directory import local_directory, metadata_name, open_checkpoint, readable_place
from cairn._results.lazy_metadata import LazyMetadata
from cairn._settings import links_followed, pickle_allowed, save_deadlines
from cairn._state.payloads import check_rules_hold
from cairn._state.values import warn_of_conversions
from cairn._telemetry import engine_use
from cairn._torch_names import modules, replacements
from cairn._torch_names.torch_floor import (
    CURRENT_DCP_VERSION,
    ExtensionRegistry,
    SerializationFormat,
    StreamTransformExtension,
)
from cairn._torch_protocol.claims import Claim, Ticket, claim_checkpoint, current_ticket, mark
from cairn._torch_protocol.hooks import name_of
from cairn._torch_protocol.read_items import ItemReader, PlannerWithoutCode
from cairn._torch_protocol.storages import (
    directory_of,
    model_directory,
    model_form,
    reads_model,
    why_torch_reads,
    why_torch_writes,
    writes_model,
)
from cairn._torch_protocol.transformed_items import TransformedItems
from cairn._torch_protocol.write_items import metadata_of, write_items
from cairn.errors import Cancelled, InvalidArgument, NotFound

_PathLike = str | os.PathLike[str]
_Option = TypeVar("_Option", int, bool)
_ELSEWHERE = "torch's code reads items that are not where the checkpoint's metadata places them"
_EXPANDED = "stream transforms are undone item by item, by Python"
_THREADS = 6  # requests in flight; torch's default of 1 would leave the device idle


class MissingCheckpointId(InvalidArgument, RuntimeError):
    """Raised if neither a checkpoint_id nor a storage was given. DCP raises RuntimeError."""


@replacements.stands_for_base
class FileSystemWriter(StockWriter):
    """The directory and options of ``cairn.save``, and a StorageWriter for ``torch.distributed.checkpoint.save``.

    The arguments are those of DCP's class: `path` is a directory. `single_file_per_rank`: False for one file per entry.
    `sync_files`: False skips fsync (a power cut may then lose the checkpoint). `thread_count`: the number of writes in
    flight, which does not change the number of files. `overwrite`: False raises if a checkpoint exists already.
    `cache_staged_state_dict` is for ``stage``; `per_thread_copy_ahead` has no effect.

    As a StorageWriter, the class keeps the promises of ``cairn.save``: the ranks write natively the data that the
    planner resolves, an old checkpoint stays whole until the new checkpoint is durable, and a failure of a rank leaves
    no file behind. (A failure outside of the writer's methods, as in a planner's ``finish_plan``, leaves files until
    the coordinator's writer is used again or destroyed.) If the storage hangs, the methods fail within the deadlines of
    :func:`cairn.configure_saves`.

    Torch's own code does the inherited work, and none of these promises holds, in three cases: with `_extensions` or
    another `serialization_format`; in a subclass whose `fs` is not local; and in a subclass that overrides
    `prepare_global_plan` or `write_data`, or `finish` without a call of ``super().finish()``.
    """

    _cairn_claim: Claim | None = None  # the coordinator's, from prepare_global_plan on
    _cairn_is_alone = False  # True: only one rank takes part
    _cairn_threads_min = _THREADS  # for a subclass without a call of __init__(): torch's default would be 1

    def __init__(
        self,
        path: _PathLike,
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = _THREADS,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
        _extensions: Sequence[StreamTransformExtension] | None = None,
        serialization_format: SerializationFormat = SerializationFormat.TORCH_SAVE,
    ) -> None:
        super().__init__(
            path,
            single_file_per_rank,
            sync_files,
            thread_count,
            per_thread_copy_ahead,
            cache_staged_state_dict,
            overwrite,
            _extensions,
            serialization_format,
        )
        self._cairn_threads_min = 1

    def reset(self, checkpoint_id: _PathLike | None = None) -> None:
        """As in DCP. Gives up a save that is in flight."""
        FileSystemWriter.give_up(self)
        super().reset(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """As in DCP. Gives up a save that is in flight."""
        FileSystemWriter.give_up(self)
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if reason := why_torch_writes(self):
            engine_use.storage_moves_data(self, self.path, reason)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns the plan unchanged."""
        return super().prepare_local_plan(plan) if why_torch_writes(self) else plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Claims the directory, and adds the ticket to every rank's plan (cairn._torch_protocol.claims). Raises if
        overwriting is forbidden.

        From now on ``save_id`` is the claim's id; metadata and commit record then hold equal ids.
        """
        if why_torch_writes(self):
            return super().prepare_global_plan(plans)
        rank = None if self.use_collectives else self.rank
        self._cairn_claim = claim_checkpoint(
            directory_of(self), overwrite=self.overwrite, durable=self.sync_files, alone_as_rank=rank
        )
        self.save_id = str(uuid.UUID(self._cairn_claim.save_id))
        self._cairn_is_alone = len(plans) == 1
        return [replace(plan, storage_data=self._cairn_claim.ticket(i + (rank or 0))) for i, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        """Writes the data that `planner` resolves for the items. The returned future is done."""
        if why_torch_writes(self):
            return super().write_data(plan, planner)
        ticket = current_ticket(plan.storage_data)
        try:
            results = write_items(plan, planner, lambda state: self._cairn_write(ticket, state))
        except BaseException as error:
            mark(error, ticket)
            if self._cairn_is_alone:  # then torch gathers nothing
                FileSystemWriter.give_up(self)
            raise
        engine_use.storage_moves_data(self, self.path)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Completes `metadata` and commits the checkpoint, or raises and withdraws the files of all ranks."""
        if why_torch_writes(self):
            super().finish(metadata, results)
            return
        claim, self._cairn_claim = self._cairn_claim, None
        if claim is None:
            raise Cancelled("the save was cancelled before finish()")
        try:
            texts = self._cairn_commit(claim, metadata, results)
        finally:
            claim.give_up()  # does nothing after a commit
        for text in texts:
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _cairn_write(self, ticket: Ticket, state: _engine.StateDict) -> _engine.RankShare:
        return _engine.write_share(
            os.fsencode(directory_of(self)),
            ticket.content,
            ticket.rank,
            state,
            durable=self.sync_files,
            file_per_item=not self.single_file_per_rank,
            thread_count=max(self.thread_count, self._cairn_threads_min),
            deadlines=save_deadlines(),
        )

    def _cairn_commit(self, claim: Claim, metadata: Metadata, results: list[list[WriteResult]]) -> list[str]:
        files = metadata_of(metadata, results)
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_meta = self.storage_meta()
        return claim.commit(pickle.dumps(metadata), files)

    def check_committed(self) -> None:
        """For drivers, after finish(): raises InvalidArgument if the save has not been committed."""
        if self._cairn_claim is not None:
            raise InvalidArgument(
                f"{name_of(type(self))}.finish() returned without a call of super().finish(), which commits the "
                f"checkpoint; the data files in '{self.path}' are withdrawn. Call super().finish() in every case; a "
                f"finish() without any super().finish() in its code makes torch's code write the data",
            )

    def give_up(self) -> None:
        """For drivers: withdraws the files of this save, if not committed yet. Does nothing without a save."""
        claim, self._cairn_claim = self._cairn_claim, None
        if claim is not None:
            claim.give_up()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cairn_claim": None}  # the claim belongs to this process


@replacements.stands_for_base
class FileSystemReader(StockReader):
    """The directory and options of ``cairn.load``, and a StorageReader for ``torch.distributed.checkpoint.load``.

    `path` is a directory; `thread_count` is the number of reads in flight. `keep_cached` reads through the page cache,
    which keeps the bytes as long as the system has no other use for the memory: the first load is slower, and later
    loads of the checkpoint on this host come from memory. Loads without `keep_cached` use cached bytes too.
    `broadcast_replicas` reads bytes that ranks of several hosts need once, and sends the bytes to the other ranks
    through the process group: for a storage that is slower than the network. Where
    ``torch.distributed.checkpoint.load`` drives, `broadcast_replicas` has no effect.

    As a StorageReader, the class decodes the metadata without running code from the checkpoint, reads directly into the
    planner's tensors, and checks every byte read. Dtypes are converted as by torch, with a ConversionWarning. The
    reader's registry undoes stream transforms (compression), within bounds of memory. torch reads items at places that
    the checkpoint's metadata does not name, and all data in a subclass whose `fs` is not local.

    No code from the checkpoint runs, also where ``torch.distributed.checkpoint.load`` drives: a value that can't be
    read without running code raises UnsafeContent, unless ``cairn.install(allow_pickle=True)`` or CAIRN_ALLOW_PICKLE=1
    allows pickle. A planner that overrides ``load_bytes`` gets the stored bytes and may unpickle them by its own rules.
    """

    thread_count = _THREADS
    keep_cached = False
    broadcast_replicas = False
    _cairn_checkpoint: _engine.Checkpoint | None = None  # the checkpoint whose metadata was read, outside of a _Reading

    def __init__(
        self,
        path: _PathLike,
        _extension_registry: ExtensionRegistry | None = None,
        thread_count: int = _THREADS,
        *,
        keep_cached: bool = False,
        broadcast_replicas: bool = False,
    ) -> None:
        super().__init__(path, _extension_registry)
        self.thread_count = thread_count
        self.keep_cached = keep_cached
        self.broadcast_replicas = broadcast_replicas

    def reset(self, checkpoint_id: _PathLike | None = None) -> None:
        """As in DCP."""
        _keep(self, None)
        super().reset(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns the metadata as torch's class, filled at the first access; `rank` selects the checkpoint that the
        rank saved alone."""
        rank = kwargs.get("rank")
        if not why_torch_reads(self):
            checkpoint = _open(self, rank)
            _keep(self, checkpoint)
            return LazyMetadata(_engine.catalog_of(checkpoint), self.load_id)
        if _consent_to(self):
            return super().read_metadata(*args, **kwargs)
        with tempfile.TemporaryDirectory(prefix="cairn-metadata-") as copy:
            with self.fs.create_stream(self._get_metadata_path(rank), "rb") as stream:
                (Path(copy) / metadata_name(None)).write_bytes(stream.read())
            return LazyMetadata(_engine.catalog_of(open_checkpoint(copy)), self.load_id)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Fills the planner's tensors and loads its values. The returned future is done."""
        reason = why_torch_reads(self)
        reading = _reading_of(self)
        checkpoint = self._cairn_checkpoint if reading is None else reading.checkpoint
        if not reason and checkpoint is None:  # a subclass read the metadata from another place
            try:
                checkpoint = _open(self, None if self.use_collectives else self.rank)
                _keep(self, checkpoint)
            except NotFound:
                reason = f"{name_of(type(self))} has its metadata from elsewhere than the directory"
        allow_pickle = _consent_to(self)
        if reason or checkpoint is None:
            return self._cairn_read_by_torch(plan, planner, allow_pickle, reason)
        given = _options() if reading is None else reading.options
        threads = _option(self, "thread_count", _THREADS)
        options = {**given, "thread_count": threads, "direct_io": not _option(self, "keep_cached", False)}
        reader = ItemReader(checkpoint, self.storage_data, options, allow_pickle, model_directory(self))
        ours: list[ReadItem] = []
        transformed: list[ReadItem] = []
        theirs: list[ReadItem] = []
        for item in plan.items:
            kind = ours if reader.knows(item) else transformed if reader.is_transformed(item) else theirs
            kind.append(item)
        reader.read(ours, planner)
        if transformed:
            directory = directory_of(self)
            TransformedItems(directory, self.transforms, reader, options, allow_pickle).read(transformed, planner)
        warn_of_conversions(reader.conversions)
        if theirs:
            return self._cairn_read_by_torch(replace(plan, items=theirs), planner, allow_pickle, _ELSEWHERE)
        engine_use.storage_moves_data(self, self.path, way=_EXPANDED if transformed else "")
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cairn_checkpoint": None}  # the checkpoint belongs to this process

    def _cairn_read_by_torch(
        self, plan: LoadPlan, planner: LoadPlanner, allow_pickle: bool, reason: str
    ) -> "Future[None]":
        """Makes torch read the items, tensors by the rules of ``weights_only=True``. `reason` is for engine_use."""
        if not allow_pickle:
            check_rules_hold(f"an item in '{self.path}'")
        future = super().read_data(plan, cast(LoadPlanner, PlannerWithoutCode(planner, allow_pickle)))
        engine_use.storage_moves_data(self, self.path, reason)
        return future


@dataclass(eq=False)
class _Reading:
    """A load by ``cairn.load`` under torch's driver: the caller's reader, consent and options."""

    reader: FileSystemReader
    allow_pickle: bool
    options: Mapping[str, Any]
    checkpoint: _engine.Checkpoint | None = None  # the checkpoint whose metadata was read


# The load of this thread. Not an attribute of the reader: another thread may load by the reader without consent.
_reading: ContextVar[_Reading | None] = ContextVar("cairn_reading", default=None)


def _options() -> dict[str, Any]:
    """The options of loads outside cairn.load."""
    return {"allow_cast": True, "follow_links": links_followed(None)}


@contextlib.contextmanager
def reading(reader: FileSystemReader, allow_pickle: bool, options: Mapping[str, Any]) -> Iterator[None]:
    """For ``cairn.load``: within the block, in this thread, `reader` reads with `allow_pickle` and engine `options`."""
    token = _reading.set(_Reading(reader, allow_pickle, options))
    try:
        yield
    finally:
        _reading.reset(token)


def _reading_of(reader: FileSystemReader) -> _Reading | None:
    """Returns the current load if the load is by `reader`; a reader may call another reader."""
    current = _reading.get()
    return current if current is not None and current.reader is reader else None


def _consent_to(reader: FileSystemReader) -> bool:
    current = _reading_of(reader)
    return pickle_allowed(None if current is None else current.allow_pickle)


def _keep(reader: FileSystemReader, checkpoint: _engine.Checkpoint | None) -> None:
    """Keeps `checkpoint` open for read_data(), because a save may replace the checkpoint before the call."""
    current = _reading_of(reader)
    if current is None:
        reader._cairn_checkpoint = checkpoint
    else:
        current.checkpoint = checkpoint


def _open(reader: FileSystemReader, rank: int | None) -> _engine.Checkpoint:
    return open_checkpoint(directory_of(reader), rank)


def save_options(checkpoint_id: _PathLike | None, writer: StockWriter | None) -> tuple[_PathLike, dict[str, Any]]:
    """Returns the directory and the engine's options for a save by a native writer."""
    if writer is None:
        directory = _directory(checkpoint_id, "storage_writer", local_directory)
        return directory, {"checkpoint_id": os.fspath(checkpoint_id or directory)}
    if checkpoint_id is not None:
        writer.reset(checkpoint_id)
    if writes_model(writer):
        return directory_of(writer), {
            "safetensors": model_form(writer),
            "durable": writer.sync_files,
            "overwrite": writer.overwrite,
            "thread_count": max(writer.thread_count, _THREADS),
        }
    return directory_of(writer), {
        "checkpoint_id": os.fspath(writer.path),
        "file_per_item": not writer.single_file_per_rank,
        "durable": writer.sync_files,
        "overwrite": writer.overwrite,
        "thread_count": max(writer.thread_count, 1 if FileSystemWriter in type(writer).__mro__ else _THREADS),
    }


def load_options(checkpoint_id: _PathLike | None, reader: StockReader | None) -> tuple[_PathLike, dict[str, Any]]:
    """Returns the directory and the engine's options for a load by a native reader."""
    if reader is None:
        return _directory(checkpoint_id, "storage_reader", readable_place), {}
    if checkpoint_id is not None:
        reader.reset(checkpoint_id)
    threads = _option(reader, "thread_count", _THREADS)
    options = {"thread_count": max(threads, _THREADS) if reads_model(reader) else threads}
    if _option(reader, "keep_cached", False):
        options["direct_io"] = False
    if _option(reader, "broadcast_replicas", False):
        options["broadcast_replicas"] = True
    return directory_of(reader), options


def _option(reader: StockReader, name: str, default: _Option) -> _Option:
    """The reader's option. A class of the caller's may use the name for a value of another type, which is no option."""
    value = getattr(reader, name, default)
    return value if isinstance(value, type(default)) else default


def _directory(
    checkpoint_id: _PathLike | None, storage: str, place_of: Callable[[_PathLike], _PathLike | None]
) -> _PathLike:
    if not checkpoint_id:
        raise MissingCheckpointId(f"`checkpoint_id` must be specified if `{storage}` is None")
    directory = place_of(checkpoint_id)
    assert directory is not None  # otherwise the storage would not be native
    return directory


__getattr__, __dir__ = modules.names_of(__name__)
