"""The write items of torch's save plans, as the boxes of a safetensors model, and the ranks that write the boxes.

torch's planner has assigned an item that several ranks hold to one of them. Where each file of a model is written by
one rank, the items of the other ranks in this file move to the writing rank, which must hold their tensors whole.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from cairn import _engine
from cairn._directory import existing_directory
from cairn._process import ProcessPart, part
from cairn._settings import save_deadlines
from cairn._state.torch_codes import CODES, QUANTIZED
from cairn._torch_protocol.claims import Claim
from cairn._torch_protocol.write_items import Written
from cairn.errors import InvalidArgument, Unsupported

_PathLike = str | os.PathLike[str]
_Form = tuple[dict[str, int], bool, bool]  # as the engine's option `safetensors`
_Boxes = tuple[str, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_CONSOLIDATING_THREADS = 4  # requests in flight; torch's default of 1 would leave the device idle


class _LastPlans(ProcessPart):
    """`plans`: the plans of the last save of this process, at the coordinator. With its plan cache, torch's planner
    sends an empty plan in place of an unchanged plan."""

    def __init__(self) -> None:
        self.plans: list[SavePlan] = []


@dataclass(frozen=True)
class WholeKeys:
    """For the coordinator: the tensors that a rank holds whole, before torch's planner assigns them to one rank."""

    keys: frozenset[str]


def whole_keys(items: Iterable[WriteItem]) -> WholeKeys:
    """Returns the tensors that a rank's own items hold whole."""
    return WholeKeys(frozenset(item.index.fqn for item in items if _is_whole(item)))


def claim_model(
    directory: _PathLike, plans: list[SavePlan], *, form: _Form, overwrite: bool, durable: bool
) -> tuple[Claim, list[SavePlan]]:
    """Claims `directory` for a model. Returns the claim, and for each rank its plan with the items to write and the
    ticket."""
    plans = _with_cached(plans)
    part(_LastPlans).plans = plans
    held = [_held_items(plans, rank, moves=not form[1]) for rank in range(len(plans))]
    claim = Claim(
        _engine.claim_model(
            os.fsencode(directory),
            [[_box_of(item) for item in items] for items in held],
            safetensors=form,
            overwrite=overwrite,
            durable=durable,
            deadlines=save_deadlines(),
        )
    )
    assigned = [
        replace(plan, items=[held[rank][index] for index in claim.boxes(rank)], storage_data=claim.ticket(rank))
        for rank, plan in enumerate(plans)
    ]
    return claim, assigned


def boxes_of(results: Iterable[list[WriteResult]]) -> list[tuple[str, str, int]]:
    """Returns key, file and bytes of each box that the ranks have written."""
    boxes = []
    for result in (result for of_rank in results for result in of_rank):
        key = result.index.fqn
        if not isinstance(result, Written):
            raise InvalidArgument(f"the result for '{key}' does not come from this writer", key=key)
        boxes.append((key, result.file[0], result.size_in_bytes))
    return boxes


def consolidate(
    source: _PathLike, target: _PathLike, mapping: Mapping[str, int], threads: int, options: Mapping[str, Any]
) -> list[str]:
    """Writes the model of whole tensors into `target`, with the engine's `options`. Returns warnings."""
    return _engine.consolidate(
        os.fsencode(existing_directory(source)),
        os.fsencode(existing_directory(target)),
        safetensors=(dict(mapping), False, False),
        thread_count=max(threads, _CONSOLIDATING_THREADS),
        deadlines=save_deadlines(),
        **options,
    )


def _with_cached(plans: list[SavePlan]) -> list[SavePlan]:
    last = part(_LastPlans).plans
    if len(last) != len(plans):
        return plans
    return [plan if getattr(plan, "usable", True) else last[rank] for rank, plan in enumerate(plans)]


def _held_items(plans: list[SavePlan], rank: int, *, moves: bool) -> list[WriteItem]:
    """Returns the items of `rank`, and the items of other ranks that `rank` holds too if an item `moves`."""
    held = list(plans[rank].items)
    whole = plans[rank].storage_data
    if not moves or not isinstance(whole, WholeKeys):
        return held
    for other, plan in enumerate(plans):
        if other != rank:
            held += [item for item in plan.items if _is_whole(item) and item.index.fqn in whole.keys]
    return held


def _is_whole(item: WriteItem) -> bool:
    return item.tensor_data is not None and item.tensor_data.chunk.sizes == item.tensor_data.size


def _box_of(item: WriteItem) -> _Boxes:
    key, data = item.index.fqn, item.tensor_data
    if data is None:
        raise InvalidArgument(f"the write item of the tensor '{key}' has no size", key=key)
    dtype = data.properties.dtype
    if dtype not in CODES or dtype in QUANTIZED:
        raise Unsupported(f"safetensors has no dtype {dtype}: '{key}'", key=key, actual=str(dtype))
    return key, CODES[dtype], tuple(data.size), tuple(data.chunk.offsets), tuple(data.chunk.sizes)
