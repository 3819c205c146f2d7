"""The attributes that torch's driver sets on the planner, writer and reader of a call, set here after the engine's
calls.

``torch.distributed.checkpoint`` calls hooks of these objects, and the hooks store their arguments in attributes.
Callers read some attributes after the call: ``planner.metadata``, ``planner.mappings``, ``reader.storage_data``,
``writer.save_id``. The engine calls no hooks; this module sets the attributes. Attributes with a long computation are
computed at the first access.

The save planner of every rank gets the metadata and the mappings of all ranks; in torch only the coordinator's planner
has the metadata. ``plan`` and ``global_plan`` of a save planner are not set: the engine has plans of its own.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from cairn._results.lazy_dict import LazyDict
from cairn._state.flattening import Leaf, flatten


def fill_save_planner(planner: Any, metadata: Metadata, rank: int, state_dict: dict[str, Any] | None = None) -> None:
    """Sets the attributes of a DefaultSavePlanner after a save. None is ignored.

    `state_dict` is given by saves that have returned: the planner holds the state dict, as torch's does. An
    asynchronous save gives None and ``planner.state_dict`` is not set, because torch's planner holds the staged copy
    there.
    """
    if planner is None:
        return
    if state_dict is not None:
        planner.state_dict = _flat(state_dict) if planner.flatten_state_dict else state_dict
    if planner.flatten_state_dict:
        planner.mappings = LazyDict(lambda: metadata.planner_data or {})
    planner.metadata = metadata
    planner.is_coordinator = rank == 0


def fill_load_planner(
    planner: Any, state_dict: dict[str, Any], leaves: Sequence[Leaf], metadata: Metadata, rank: int
) -> None:
    """Sets the attributes of a DefaultLoadPlanner for a load of `leaves`, the leaves of `state_dict`. None is ignored.

    The tensors of ``planner.state_dict`` are read from `state_dict` at the first access: a meta tensor has been
    replaced by then.
    """
    if planner is None:
        return
    planner.original_state_dict = state_dict
    if planner.flatten_state_dict:
        planner.mappings = LazyDict(lambda: {leaf.fqn: leaf.path for leaf in leaves})
        planner.state_dict = LazyDict(lambda: {leaf.fqn: leaf.container[leaf.place] for leaf in leaves})
    else:
        planner.state_dict = state_dict
    planner.metadata = metadata
    planner.is_coordinator = rank == 0


def fill_writer(writer: Any, save_id: str, rank: int, *, use_collectives: bool) -> None:
    """Sets the attributes of a FileSystemWriter after a save. `save_id` is the engine's, in any form of a UUID. None is
    ignored."""
    if writer is None:
        return
    writer.save_id = str(uuid.UUID(save_id))
    writer.rank = rank
    writer.use_collectives = use_collectives


def fill_reader(reader: Any, metadata: Metadata, rank: int, *, use_collectives: bool) -> None:
    """Sets the attributes of a FileSystemReader for a load. None is ignored."""
    if reader is None:
        return
    reader.storage_data = LazyDict(lambda: metadata.storage_data or {})
    reader.rank = rank
    reader.use_collectives = use_collectives


def _flat(state_dict: dict[str, Any]) -> LazyDict:
    return LazyDict(lambda: {leaf.fqn: leaf.value for leaf in flatten(state_dict)})
