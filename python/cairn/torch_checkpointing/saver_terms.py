"""SaverTerms: the parts of a saver that the caller has given, and which of these parts the engine can stand in for.

A class of the caller's is native for the hooks that the class does not override. A saver with a part that is not native
runs torch_checkpointing's own code.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn

import torch.distributed as dist
from torch_checkpointing.barriers import DefaultStoreBarrierConfig, TCPStoreBarrierConfig
from torch_checkpointing.builder import _default_subprocess_init
from torch_checkpointing.checkpoint_base import CheckpointItem
from torch_checkpointing.checkpoint_process import CheckpointProcess
from torch_checkpointing.checkpoint_writer import (
    CallbackArgs,
    CheckpointWriter,
    CheckpointWriterArgs,
    CheckpointWriterConfig,
)
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.logging_utils import EventLogger
from torch_checkpointing.metadata_manager import DefaultMetadataManager, MetadataManager
from torch_checkpointing.schema import ItemSpec
from torch_checkpointing.staging import CheckpointStager, CheckpointStagerConfig, DefaultStager
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
from torch_checkpointing.types import RankInfo

from cairn._calls.async_save import prepare_async_saves
from cairn._torch_names.torch_floor import AsyncCheckpointerType
from cairn._torch_protocol.hooks import hooks_of, why_not_native
from cairn.errors import Unsupported

_BARRIERS = (DefaultStoreBarrierConfig, TCPStoreBarrierConfig)
_NO_ARGUMENTS = CheckpointWriterArgs(CheckpointWriterConfig(), RankInfo(0, 1, 0, 1), LocalFileSystemStorageConfig())
_SAVING_HOOKS = ("extract_sharding_metadata",)  # of a resharder


def _methods_of(*kinds: type) -> frozenset[str]:
    return frozenset(name for name in hooks_of(*kinds) if any(callable(getattr(kind, name, None)) for kind in kinds))


_STAGING_HOOKS = _methods_of(DefaultStager)
_PROCESS_HOOKS = _methods_of(CheckpointProcess)
_WRITING_HOOKS = _methods_of(CheckpointWriter)
_METADATA_HOOKS = _methods_of(DefaultMetadataManager) - {"_all_gather_pickled_data"}  # how its messages travel


@dataclass(frozen=True)
class SaverTerms:
    """`staging` is None for a saver that blocks. `foreign`: the stager, process or writer of the caller's class."""

    writer_args: CheckpointWriterArgs
    metadata_manager: MetadataManager | None = None
    staging: CheckpointStagerConfig | None = None
    subprocess_init_fn: Callable[..., None] | None = None
    foreign: str = ""

    def finalize(self, path: str) -> None:
        """Calls the ``finalize_callback``, in this process. The checkpoint in `path` is durable."""
        callback = self.writer_args.finalize_callback
        if callback is not None:
            storage = self.writer_args.storage_config.create_storage()
            callback(CallbackArgs(path=path, storage=storage, event_logger=EventLogger()))


@dataclass(frozen=True)
class ItemsToSave:
    """A save of the engine: the directory, the items and the terms of the saver.

    `before` is called where an error reaches all ranks of the save, and raises the error of the previous save, if any.
    """

    path: str
    items: Mapping[str, CheckpointItem]
    terms: SaverTerms
    before: Callable[[], None] = lambda: None

    def finish(self) -> None:
        """Called when the checkpoint is durable and in place, before the save's future is done."""
        self.terms.finalize(self.path)


class EngineProcess:
    """In the place of a CheckpointProcess, for a saver whose files the engine writes."""

    def __init__(self, terms: SaverTerms) -> None:
        self.terms = terms

    def close(self) -> None:
        """Does nothing: the writer process belongs to ``cairn.async_save``."""


class EngineWriter(EngineProcess):
    """In the place of a CheckpointWriter, for a saver that blocks."""


class EngineStager(CheckpointStager):
    """In the place of a DefaultStager: the engine copies the state into the memory from which its process writes."""

    def stage(self, state_dict: Any, keys_not_requiring_copy: Any = None) -> Any:
        """Prepares memory and the writer process for saves of a state like `state_dict`. Copies nothing: the result of
        the future is empty."""
        prepared: Future[dict[str, Any]] = Future()
        prepared.set_running_or_notify_cancel()

        def end(done: "Future[None]") -> None:
            error = done.exception()
            if error is None:
                prepared.set_result({})
            else:
                prepared.set_exception(error)

        prepare_async_saves(dict(state_dict), AsyncCheckpointerType.PROCESS).add_done_callback(end)
        return prepared

    def get_staged_state_dict(self) -> None:
        """Returns None: the staged bytes are files, not tensors."""

    def close(self) -> None:
        """Does nothing: the memory belongs to ``cairn.async_save``."""


def terms_of_process(stager: CheckpointStager, process: Any, manager: MetadataManager | None) -> SaverTerms:
    """Returns the terms of an asynchronous saver that is made of these parts."""
    if isinstance(process, EngineProcess):
        return process.terms
    foreign = _named("checkpoint_stager", why_not_native(stager, _STAGING_HOOKS, (DefaultStager, EngineStager)))
    foreign = foreign or _named("checkpoint_process", why_not_native(process, _PROCESS_HOOKS, (CheckpointProcess,)))
    return SaverTerms(
        getattr(process, "_checkpoint_writer_args", _NO_ARGUMENTS),
        manager,
        getattr(stager, "_config", None) or CheckpointStagerConfig(),
        getattr(process, "_subprocess_init_fn", None),
        foreign,
    )


def terms_of_writer(writer: Any, manager: MetadataManager | None) -> SaverTerms:
    """Returns the terms of a saver that blocks."""
    if isinstance(writer, EngineWriter):
        return writer.terms
    foreign = _named("writer", why_not_native(writer, _WRITING_HOOKS, (CheckpointWriter,)))
    return SaverTerms(getattr(writer, "_args", _NO_ARGUMENTS), manager, foreign=foreign)


def why_stock(terms: SaverTerms) -> str:
    """Returns the arguments that only torch_checkpointing's own code can honour, with reasons; "" if there are none."""
    return terms.foreign or "; ".join(filter(None, _reasons(terms)))


def why_items_are_foreign(items: Mapping[str, Any]) -> str:
    """As why_stock(), for the classes of the items' resharders."""
    found = (
        (key, why_not_native(item.resharder, _SAVING_HOOKS, (DefaultResharder,)))
        for key, item in items.items()
        if item.resharder is not None
    )
    return next((f"the resharder of item '{key}': {reason}" for key, reason in found if reason), "")


def why_layouts_are_foreign(items: Mapping[str, CheckpointItem | ItemSpec]) -> str:
    """As why_stock(), for the items' files in the form of torch_checkpointing."""
    in_folders = (key for key, item in items.items() if item.layout is not None and "/" in item.layout.file_path)
    return next((f"the layout of item '{key}': its file is in a folder" for key in in_folders), "")


def refuse_with_ours(reason: str) -> NoReturn:
    """Raises Unsupported for a `reason` of why_stock() or why_items_are_foreign()."""
    raise Unsupported(f"files='ours' does not work with {reason}. Leave the argument out, or choose files='theirs'")


def _reasons(terms: SaverTerms) -> Iterator[str]:
    args = terms.writer_args
    config = args.config
    yield _named("the class of the writer's arguments", why_not_native(args, ("build",), (CheckpointWriterArgs,)))
    yield _of_kind("storage_config", args.storage_config, LocalFileSystemStorageConfig)
    if config.barrier_config is None:
        yield "barrier_config=None: the ranks commit together"
    else:
        yield _of_kind("barrier_config", config.barrier_config, *_BARRIERS)
    if config.barrier_config is not None and not config.write_to_temp_dir:
        yield "write_to_temp_dir=False: a checkpoint appears when it is whole"
    for name in ("pre_write_callback", "pre_finalize_callback"):
        if getattr(args, name) is not None:
            yield f"{name}: the engine calls no code before the commit"
    if terms.subprocess_init_fn not in (None, _default_subprocess_init):
        yield "subprocess_init_fn: the writer process is native"
    manager = terms.metadata_manager
    if manager is not None:
        native = (DefaultMetadataManager,)
        yield _named("checkpoint_metadata_manager", why_not_native(manager, _METADATA_HOOKS, native))
        if getattr(manager, "_process_group", None) is not None:
            yield "checkpoint_metadata_manager: it has a process group of its own"
    yield _of_other_ranks(args.rank_info)


def _of_other_ranks(info: Any) -> str:
    rank, ranks = this_rank()
    if (info.global_rank, info.global_world_size) == (rank, ranks):
        return ""
    given = f"rank {info.global_rank} of {info.global_world_size}"
    return f"rank_info: {given}, and torch's process group has this process as rank {rank} of {ranks}"


def this_rank() -> tuple[int, int]:
    """Returns the number of this process in torch's default process group, and the number of ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@functools.cache
def _hooks_of_kinds(kinds: tuple[type, ...]) -> frozenset[str]:
    return _methods_of(*kinds)


def _of_kind(argument: str, instance: object, *kinds: type) -> str:
    return _named(argument, why_not_native(instance, _methods_of_instance(instance, kinds), kinds))


def _methods_of_instance(instance: object, kinds: tuple[type, ...]) -> frozenset[str]:
    """Returns the methods that the instance has: the native classes may have different methods."""
    native = next((kind for kind in kinds if isinstance(instance, kind)), kinds[0])
    return _hooks_of_kinds((native,))


def _named(argument: str, reason: str) -> str:
    return f"{argument}: {reason}" if reason else ""
