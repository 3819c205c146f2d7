"""The stock implementation, torch.distributed.checkpoint, with its warnings silenced: the reference for Cairn."""

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import Metadata

__all__ = ["dcp", "dcp_to_torch_save", "load", "metadata_of", "rewrite_metadata", "save"]


def save(state: dict[str, Any], directory: str | os.PathLike[str], **options: Any) -> Metadata:
    """torch.distributed.checkpoint.save in one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dcp.save(state, checkpoint_id=directory, no_dist=True, **options)


def load(state: dict[str, Any], directory: str | os.PathLike[str], **options: Any) -> None:
    """torch.distributed.checkpoint.load in one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=directory, no_dist=True, **options)


def metadata_of(directory: Path) -> Metadata:
    """Returns `.metadata`, read by Python's pickle."""
    return pickle.loads((directory / ".metadata").read_bytes())


def rewrite_metadata(directory: Path, metadata: Metadata) -> None:
    """Replaces `.metadata`, as stock torch writes the file."""
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
