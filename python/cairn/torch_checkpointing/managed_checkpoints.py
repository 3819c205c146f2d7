"""CheckpointManager, with the name of torch_checkpointing: saves and loads of a mapping of items."""

import abc
from dataclasses import dataclass
from typing import Any

from torch_checkpointing import checkpoint_manager as theirs
from torch_checkpointing.builder import _get_default_rank_info
from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig
from torch_checkpointing.metadata_manager import DefaultMetadataManager
from torch_checkpointing.schema import _CheckpointSchema
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from cairn._torch_names.replacements import stands_for_base
from cairn.torch_checkpointing.builder import make_async_checkpoint_saver, make_sync_checkpoint_saver
from cairn.torch_checkpointing.checkpoint_loader import CheckpointLoader
from cairn.torch_checkpointing.checkpoint_reader import CheckpointReader
from cairn.torch_checkpointing.dcp_files import check_items
from cairn.torch_checkpointing.file_choice import Files, chosen


@stands_for_base
class CheckpointManager(theirs.CheckpointManager, metaclass=abc.ABCMeta):
    """Saves and loads of ``{item_key: value}``, as torch_checkpointing's class of this name.

    `save`, `load`, `prewarm_staging`, `lock` and `close` have the signatures and contracts of torch_checkpointing. The
    saver is Cairn's AsyncCheckpointSaver or SyncCheckpointSaver, and loads go through Cairn's CheckpointLoader.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(theirs.CheckpointManager.Config):
        """The configuration of torch_checkpointing, with two fields more.

        `files`: the kind of files that a save writes, "theirs" or "ours"; None: as :func:`install` says. A load
        recognises both. `allow_pickle`: whether a load may run code that a checkpoint names; None: as
        ``cairn.install`` says, else only if the environment variable CAIRN_ALLOW_PICKLE is 1.
        """

        files: Files | None = None
        allow_pickle: bool | None = None

        def build(self) -> "CheckpointManager":
            """Returns a CheckpointManager of this configuration."""
            return CheckpointManager(config=self)

    def __init__(self, config: "theirs.CheckpointManager.Config | None" = None) -> None:
        self._config = config = config or CheckpointManager.Config()
        self._schema = _CheckpointSchema(items=config.items, default=config.default)
        self._prewarm_staging_future = self._staging_future = self._write_future = None
        self._closed = False
        self._storage_config = config.storage_config or LocalFileSystemStorageConfig()
        ranks = _get_default_rank_info()
        self._rank = ranks.global_rank
        self._metadata_manager = DefaultMetadataManager(rank_info=ranks) if self._schema.has_resharder() else None
        files = chosen(getattr(config, "files", None))
        items = {**config.items, **({} if config.default is None else {"(default)": config.default})}
        if files == "ours":
            check_items(items)
        of_saver: dict[str, Any] = {
            "config": config.save,
            "rank_info": ranks,
            "pre_finalize_callback": config.pre_finalize_callback,
            "finalize_callback": config.finalize_callback,
            "storage_config": self._storage_config,
            "checkpoint_metadata_manager": self._metadata_manager,
            "files": files,
            "items": items,
        }
        if isinstance(config.save, SyncCheckpointSaverConfig):
            self._saver = make_sync_checkpoint_saver(**of_saver)
        elif isinstance(config.save, AsyncCheckpointSaverConfig):
            self._saver = make_async_checkpoint_saver(
                subprocess_init_fn=config.subprocess_init_fn,
                subprocess_init_args=config.subprocess_init_args,
                **of_saver,
            )
        else:
            raise TypeError(f"Unsupported saver_config type: {type(config.save).__name__}")
        self._reader = CheckpointReader(
            rank_info=ranks,
            storage_config=self._storage_config,
            disable_use_mmap_backed_storage_on_load=not config.load.use_mmap,
            allow_pickle=getattr(config, "allow_pickle", None),
        )
        self._loader = CheckpointLoader(reader=self._reader, metadata_manager=self._metadata_manager)
