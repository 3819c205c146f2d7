"""The functions that make savers, with the signatures of torch_checkpointing and the keyword `files`."""

from collections.abc import Callable, Mapping
from typing import Any

from torch_checkpointing.builder import _default_subprocess_init, _get_default_rank_info
from torch_checkpointing.checkpoint_process import CheckpointProcess
from torch_checkpointing.checkpoint_writer import CallbackArgs, CheckpointWriter, CheckpointWriterArgs
from torch_checkpointing.config import (
    DEFAULT_WAIT_TIMEOUT_SECS,
    AsyncCheckpointSaverConfig,
    SyncCheckpointSaverConfig,
)
from torch_checkpointing.metadata_manager import MetadataManager
from torch_checkpointing.schema import ItemSpec
from torch_checkpointing.staging import DefaultStager
from torch_checkpointing.storage.base_storage import StorageConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
from torch_checkpointing.types import RankInfo

from cairn.torch_checkpointing.file_choice import Files, chosen
from cairn.torch_checkpointing.saver_terms import (
    EngineProcess,
    EngineStager,
    EngineWriter,
    SaverTerms,
    why_layouts_are_foreign,
)
from cairn.torch_checkpointing.savers import AsyncCheckpointSaver, SyncCheckpointSaver, why_stock_saves


def make_sync_checkpoint_saver(
    config: SyncCheckpointSaverConfig | None = None,
    rank_info: RankInfo | None = None,
    pre_finalize_callback: Callable[[CallbackArgs], None] | None = None,
    finalize_callback: Callable[[CallbackArgs], None] | None = None,
    storage_config: StorageConfig | None = None,
    checkpoint_metadata_manager: MetadataManager | None = None,
    *,
    files: Files | None = None,
    items: Mapping[str, ItemSpec] | None = None,
) -> SyncCheckpointSaver:
    """Returns a SyncCheckpointSaver. `rank_info` None: this process in torch's default process group. `items`: as for
    make_async_checkpoint_saver().

    Raises Unsupported if `files` is "ours" and an argument asks for a hook that the engine can't honour.
    """
    kind = chosen(files)
    args = CheckpointWriterArgs(
        config=(config or SyncCheckpointSaverConfig()).writer_config,
        rank_info=rank_info or _get_default_rank_info(),
        storage_config=storage_config or LocalFileSystemStorageConfig(),
        pre_finalize_callback=pre_finalize_callback,
        finalize_callback=finalize_callback,
    )
    terms = SaverTerms(args, checkpoint_metadata_manager, foreign=_why_items(items, kind))
    reason = why_stock_saves(terms, kind)
    writer: Any = CheckpointWriter(args=args) if reason else EngineWriter(terms)
    return SyncCheckpointSaver(writer, checkpoint_metadata_manager, files=kind, why_stock=reason)


def make_async_checkpoint_saver(  # noqa: PLR0913 - the signature is torch_checkpointing's
    config: AsyncCheckpointSaverConfig | None = None,
    rank_info: RankInfo | None = None,
    pre_finalize_callback: Callable[[CallbackArgs], None] | None = None,
    finalize_callback: Callable[[CallbackArgs], None] | None = None,
    subprocess_init_fn: Callable[..., None] | None = None,
    subprocess_init_args: tuple[Any, ...] = (),
    storage_config: StorageConfig | None = None,
    checkpoint_metadata_manager: MetadataManager | None = None,
    *,
    files: Files | None = None,
    items: Mapping[str, ItemSpec] | None = None,
) -> AsyncCheckpointSaver:
    """Returns an AsyncCheckpointSaver. `rank_info` None: this process in torch's default process group. `items`: of the
    checkpoints, as far as they are known: torch_checkpointing's own code writes files that the engine can't write.

    Where the engine saves, no Python process is started, and `finalize_callback` is called in this process. Raises
    Unsupported if `files` is "ours" and an argument asks for a hook that the engine can't honour.
    """
    kind = chosen(files)
    config = config or AsyncCheckpointSaverConfig()
    args = CheckpointWriterArgs(
        config=config.writer_config,
        rank_info=rank_info or _get_default_rank_info(),
        storage_config=storage_config or LocalFileSystemStorageConfig(),
        pre_finalize_callback=pre_finalize_callback,
        finalize_callback=finalize_callback,
    )
    terms = SaverTerms(
        args, checkpoint_metadata_manager, config.staging_config, subprocess_init_fn, _why_items(items, kind)
    )
    reason = why_stock_saves(terms, kind)
    if reason:
        stager: Any = DefaultStager(config=config.staging_config)
        process: Any = CheckpointProcess(
            args.rank_info,
            config.process_config,
            subprocess_init_fn or _default_subprocess_init,
            subprocess_init_args,
            args,
        )
    else:
        stager, process = EngineStager(), EngineProcess(terms)
    seconds = DEFAULT_WAIT_TIMEOUT_SECS if config.wait_timeout_secs is None else config.wait_timeout_secs
    return AsyncCheckpointSaver(stager, process, checkpoint_metadata_manager, seconds, files=kind, why_stock=reason)


def _why_items(items: Mapping[str, ItemSpec] | None, files: Files) -> str:
    return why_layouts_are_foreign(items or {}) if files == "theirs" else ""
