"""CheckpointLoader, with the name of torch_checkpointing."""

import abc
import os
from typing import Any

from torch_checkpointing import checkpoint_loader as theirs
from torch_checkpointing.checkpoint_base import CheckpointBase
from torch_checkpointing.metadata_serialization import DistributedMetadataFormat

from cairn._torch_names.replacements import stands_for_base
from cairn.torch_checkpointing.checkpoint_reader import CheckpointReader


@stands_for_base
class CheckpointLoader(theirs.CheckpointLoader, metaclass=abc.ABCMeta):
    """Loads checkpoints of torch_checkpointing, and DCP checkpoints, with a CheckpointReader."""

    def load(
        self,
        path: str | os.PathLike[str],
        checkpoint: CheckpointBase,
        default_map_location: Any = None,
        strict: bool = False,
        *,
        metadata_format: type[DistributedMetadataFormat] | None = None,
    ) -> None:
        """Loads the items of `checkpoint` from directory `path`, and gives `checkpoint` the loaded mapping.

        Dicts, lists and tensors are filled in place; values are replaced in their containers; tuples are made anew;
        None gives new objects. With `strict`, a key that the checkpoint lacks raises MissingKeys (a RuntimeError)
        before anything changes. Each rank loads by itself. Raises cairn.Error: NotFound (a FileNotFoundError) for a
        missing item, Mismatch (a RuntimeError) for another type or shape, UnsafeContent, Corrupt.
        """
        if not isinstance(self._reader, CheckpointReader) or not self._reader.is_native:
            super().load(path, checkpoint, default_map_location, strict, metadata_format=metadata_format)
            return
        loaded, _ = self._reader.read_items(
            path,
            self._prepare_checkpoint_read_info(checkpoint),
            default_map_location,
            metadata_format,
            strict=strict,
        )
        checkpoint.load_state_dict(loaded)
