"""cairn.save: ``torch.distributed.checkpoint.save``, carried out by the engine."""

import contextlib
import functools
import os
import warnings
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.stateful import Stateful

from cairn import _engine
from cairn.failures import as_checkpoint_exceptions
from cairn.filesystem import save_options, writer_is_native
from cairn.flattening import Rules
from cairn.metadata import LazyMetadata
from cairn.objects import add_value
from cairn.planning import save_planner_is_native, save_planning
from cairn.protocol import save_by_protocol
from cairn.ranks import Ranks
from cairn.tensors import TensorSource


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

    With a process group, its ranks save one state together, each what it holds: shards of a tensor must make it up
    whole, what several ranks have is written once, shared out by bytes. What fails on one rank fails on all. With
    ``use_collectives=False`` each rank plans and saves alone, under its own metadata file, as in DCP.

    Returns DCP's Metadata, filled when it is first looked at. Warns (PickleWarning) about values that can be loaded
    only with ``allow_pickle=True``. Raises cairn.Error, which is a CheckpointException too, with the failures by rank.

    A `planner` of another class than DCP's own plans by its own rules, and a `storage_writer` that is no file system's
    stores by its own: :mod:`cairn.protocol`.
    """
    if not (save_planner_is_native(planner) and writer_is_native(storage_writer, checkpoint_id)):
        return save_by_protocol(
            {key: _state_of(value) for key, value in state_dict.items()},
            checkpoint_id=checkpoint_id,
            storage_writer=storage_writer,
            planner=planner,
            process_group=process_group,
            no_dist=no_dist,
            use_collectives=use_collectives,
        )
    with as_checkpoint_exceptions() as here, contextlib.ExitStack() as at_the_end:
        ranks = Ranks(process_group, no_dist)
        here.rank = ranks.rank
        together = ranks.options if use_collectives else {"alone_as_rank": ranks.rank}
        if not use_collectives:
            at_the_end.callback(ranks.meet)  # as DCP ends, also where this rank alone has failed
        with ranks.preparing(_engine.abandon_save if use_collectives else None):
            planning = save_planning(planner)
            directory, options = save_options(checkpoint_id, storage_writer)
            resolved = {key: _state_of(value) for key, value in state_dict.items()}
            state = _engine.StateDict()
            tensors = TensorSource(state)
            rules = Rules.TORCH_2_4 if planning["record_paths"] else Rules.TOP_LEVEL
            tensors.add_leaves(resolved, rules, functools.partial(add_value, state))
        catalog, _, _, remarks = _engine.save(os.fsencode(directory), state, **planning, **options, **together)
    for remark in remarks:
        warnings.warn(remark, RuntimeWarning, stacklevel=2)
    return LazyMetadata(catalog)


def _state_of(value: Any) -> Any:
    if type(value) in (torch.Tensor, torch.nn.Parameter, dict):
        return value
    return value.state_dict() if isinstance(value, Stateful) else value
