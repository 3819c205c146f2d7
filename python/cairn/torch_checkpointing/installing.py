"""Cairn behind the names of torch_checkpointing, for programs that must not be changed.

This module imports ``torch_checkpointing``: its modules hold Cairn's objects from the installation on, whatever a
program has imported before or imports later.
"""

from typing import Any

from torch_checkpointing import builder as their_builder
from torch_checkpointing import checkpoint_loader as their_loader
from torch_checkpointing import checkpoint_manager as their_checkpoints
from torch_checkpointing import checkpoint_reader as their_reader
from torch_checkpointing import checkpoint_saver as their_savers

from cairn._calls import installing as dcp_installing
from cairn._process import ProcessPart, part
from cairn.torch_checkpointing.builder import make_async_checkpoint_saver, make_sync_checkpoint_saver
from cairn.torch_checkpointing.checkpoint_loader import CheckpointLoader
from cairn.torch_checkpointing.checkpoint_reader import CheckpointReader
from cairn.torch_checkpointing.file_choice import Files, checked, choose
from cairn.torch_checkpointing.managed_checkpoints import CheckpointManager
from cairn.torch_checkpointing.savers import AsyncCheckpointSaver, SyncCheckpointSaver

_PAIRS: tuple[tuple[Any, Any], ...] = (
    (their_builder.make_async_checkpoint_saver, make_async_checkpoint_saver),
    (their_builder.make_sync_checkpoint_saver, make_sync_checkpoint_saver),
    (their_loader.CheckpointLoader, CheckpointLoader),
    (their_checkpoints.CheckpointManager, CheckpointManager),
    (their_reader.CheckpointReader, CheckpointReader),
    (their_savers.AsyncCheckpointSaver, AsyncCheckpointSaver),
    (their_savers.SyncCheckpointSaver, SyncCheckpointSaver),
)


class _Installation(ProcessPart):
    """`earlier`: by module and name, the references to Cairn's objects from before; None: not installed."""

    def __init__(self) -> None:
        self.earlier: set[tuple[str, str]] | None = None

    def in_child(self) -> "_Installation":
        """A child inherits the modules."""
        return self


def install(files: Files = "theirs", **settings: Any) -> None:
    """Makes programs that use ``torch_checkpointing`` use Cairn, before or after their imports.

    `files` is the kind of files that managers and savers write whose own argument `files` is None: "theirs", or "ours",
    a DCP checkpoint of Cairn. Calls :func:`cairn.install` with `settings`: programs that use
    ``torch.distributed.checkpoint`` use Cairn too. Call this in every process, before managers and savers are made.
    Raises InvalidArgument; nothing is changed then.
    """
    checked(files)
    dcp_installing.install(**settings)
    state = part(_Installation)
    if state.earlier is None:
        state.earlier = dcp_installing.places_of({id(ours) for _, ours in _PAIRS})
    choose(files)
    dcp_installing.replace_references({id(theirs): ours for theirs, ours in _PAIRS})


def uninstall() -> None:
    """Undoes install() and :func:`cairn.install`. Managers and savers that are made stay as they are."""
    state = part(_Installation)
    if state.earlier is not None:
        dcp_installing.replace_references({id(ours): theirs for theirs, ours in _PAIRS}, state.earlier)
        state.earlier = None
    choose("theirs")
    dcp_installing.uninstall()
