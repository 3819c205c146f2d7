"""cairn.save: ``torch.distributed.checkpoint.save``, carried out by the engine."""

import os
import warnings
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.stateful import Stateful

from cairn import _engine
from cairn.errors import Unsupported
from cairn.failures import as_checkpoint_exceptions
from cairn.filesystem import save_options
from cairn.flattening import flatten, top_level
from cairn.metadata import LazyMetadata
from cairn.objects import add_value
from cairn.tensors import TensorSource
from cairn.world import require_one_process, save_planner_flattens


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Metadata:
    """Saves `state_dict` as the checkpoint in directory `checkpoint_id`, in the files of DCP.

    The signature is that of ``torch.distributed.checkpoint.save``. `state_dict` may be nested; of entries that have
    ``state_dict()`` and ``load_state_dict()`` that state is saved; everything else is stored as it is. An old
    checkpoint in the directory stays whole until the new one is durable, then makes room for it; files of others there
    are left alone. Ctrl-C leaves the old one.

    Returns DCP's Metadata, filled when it is first looked at. Warns (PickleWarning) about values that can be loaded
    only with ``allow_pickle=True``. Raises cairn.Error, which is a CheckpointException too. One process only for now.
    """
    require_one_process(process_group, no_dist)
    if not use_collectives:
        raise Unsupported("use_collectives=False is not supported yet")
    flattens = save_planner_flattens(planner)
    directory, options = save_options(checkpoint_id, storage_writer)
    resolved = {key: _state_of(value) for key, value in state_dict.items()}
    with as_checkpoint_exceptions():
        state = _engine.StateDict()
        tensors = TensorSource(state)
        # Held until the save is over: a mapping may make its tensors only when it is asked, and nobody else owns them.
        leaves = flatten(resolved) if flattens else top_level(resolved)
        for path, value, _, _ in leaves:
            if isinstance(value, torch.Tensor):
                tensors.add(path, value)
            else:
                add_value(state, path, value)
        catalog, _, _, remarks = _engine.save(os.fsencode(directory), state, record_paths=flattens, **options)
    for remark in remarks:
        warnings.warn(remark, RuntimeWarning, stacklevel=2)
    return LazyMetadata(catalog)


def _state_of(value: Any) -> Any:
    if type(value) in (torch.Tensor, torch.nn.Parameter, dict):
        return value
    return value.state_dict() if isinstance(value, Stateful) else value
