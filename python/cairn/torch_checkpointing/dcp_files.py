"""A DCP checkpoint of the state ``{item: value}``, written by the engine.

Items with a resharder are entries of the ranks' common state. An item without a resharder belongs to each rank: with
several ranks, each of its leaves becomes a :class:`cairn.PerRank`, but for DTensors and tensors that declare their
shards, which are parts of a tensor of all ranks.
"""

from collections.abc import Mapping
from typing import Any

from torch.distributed.tensor import DTensor
from torch_checkpointing.checkpoint_base import CheckpointInfo, CheckpointItem
from torch_checkpointing.schema import ItemSpec

from cairn._async.pending_saves import PendingSave, note_report
from cairn._calls.arguments import Call
from cairn._calls.async_save import save_of_saver
from cairn._calls.save import save_states, wait_for_earlier_saves
from cairn._directory import existing_directory
from cairn._state.described import states_of
from cairn._state.per_rank import PerRank
from cairn._state.tensors import is_declared_shard, is_sharded, takes_declared_shards
from cairn.errors import Error, Unsupported
from cairn.torch_checkpointing.saver_terms import (
    ItemsToSave,
    refuse_with_ours,
    this_rank,
    why_items_are_foreign,
)

#: The entry of the checkpoint's notes: a dict with ``world_size``, the number of ranks that saved.
NOTE = "torch_checkpointing"


def begin_save(save: ItemsToSave, *, asynchronous_staging: bool) -> PendingSave:
    """Begins a save by a writer process. All ranks of torch's default process group call this."""
    call = _call(save, "torch_checkpointing.async_save")
    return save_of_saver(lambda: _state(save), call, save.finish, asynchronous_staging=asynchronous_staging)


def save_now(save: ItemsToSave) -> None:
    """Saves, and returns when the checkpoint is durable and in place. All ranks call this."""
    call = _call(save, "torch_checkpointing.save")
    try:
        save_states(lambda: _state(save), call, wait_for_earlier_saves)
    except Error as error:
        note_report(error)
        raise
    save.finish()


def is_global(value: object) -> bool:
    """Returns whether a leaf is a part of a tensor of all ranks."""
    return isinstance(value, DTensor) or is_declared_shard(value) or is_sharded(value)


def _call(save: ItemsToSave, function: str) -> Call:
    """Raises Unsupported for the URL of another storage."""
    place = existing_directory(save.path)
    return Call(place, None, None, function=function, notes={NOTE: {"world_size": this_rank()[1]}})


def _state(save: ItemsToSave) -> dict[str, Any]:
    """Returns the state of all ranks. Raises the error of the previous save, ValueError for an item's name, Unsupported
    for an item that only torch_checkpointing can write."""
    save.before()
    check_items(save.items)
    CheckpointInfo(dict(save.items))  # raises for names that torch_checkpointing refuses
    values = states_of({key: item.value for key, item in save.items.items()})
    for key, value in values.items():
        _refuse_undeclared(key, value)
    if this_rank()[1] == 1:
        return values
    return {
        key: value if save.items[key].resharder is not None else _of_this_rank(value) for key, value in values.items()
    }


def check_items(items: Mapping[str, CheckpointItem] | Mapping[str, ItemSpec]) -> None:
    """Raises Unsupported for an item with a layout, or with a resharder that does not leave the sharding to Cairn.

    ``requires_copy`` has no effect: every item is copied before the save goes on without the trainer.
    """
    laid_out = next((key for key, item in items.items() if item.layout is not None), None)
    if laid_out is not None:
        refuse_with_ours(f"the layout of item '{laid_out}': a DCP checkpoint has no file for an item")
    if reason := why_items_are_foreign(items):
        refuse_with_ours(reason)


def _of_this_rank(value: Any) -> Any:
    if is_global(value) or isinstance(value, PerRank):
        return value
    if isinstance(value, Mapping):
        return {key: _of_this_rank(part) for key, part in value.items()}
    if isinstance(value, list) and _holds_global(value):
        return [_of_this_rank(part) for part in value]
    return PerRank(value)


def _holds_global(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_global(part) for part in value.values())
    if isinstance(value, list):
        return any(_holds_global(part) for part in value)
    return is_global(value)


def _refuse_undeclared(key: str, value: Any) -> None:
    """Raises Unsupported for a tensor that declares its shards, where torch lacks the protocol."""
    if takes_declared_shards():
        return
    if isinstance(value, Mapping):
        for name, part in value.items():
            _refuse_undeclared(f"{key}.{name}", part)
    elif isinstance(value, list):
        for place, part in enumerate(value):
            _refuse_undeclared(f"{key}.{place}", part)
    elif is_declared_shard(value):
        raise Unsupported(
            f"'{key}' declares shards of a larger tensor (CheckpointableTensor), which files='ours' saves with torch "
            f"2.14 or later; choose files='theirs'",
            key=key,
        )
