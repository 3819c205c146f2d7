"""The plans of a save: the time of Cairn and torch to list a rank's items, and to decide the ranks' writes.

A local plan: torch's part is its planner's plan of a state dict. Cairn's part goes further, up to the bytes that a rank
sends to the coordinator; torch would still pickle its plan, which is not counted.

The coordinator's plan: torch's part is its planner's work on the gathered plans: drop duplicates, make the global plan
and the metadata, validate the chunks. Cairn's part makes and validates the plan; the figure `metadata` covers the
encoding of `.metadata`.
"""

import gc
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peak_memory import PeakMemory
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.default_planner import (
    DefaultSavePlanner,
    _validate_global_plan,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from cairn import _engine
from cairn._state.flattening import Rules
from cairn._state.tensors import TensorSource

RANK_COUNTS = (64, 256, 1024)
SHARDED = 450  # parameters, each sliced over all ranks
REPLICATED = 10  # small tensors on all ranks
VALUES = 10
ROWS, COLUMNS = 8, 1024  # of a slice, as in planning.cc

LOCAL_TENSORS = 10_000
LOCAL_REPEATS = 10  # in turns; the best counts, because foreign load disturbs milliseconds
LOCAL_TRIES = 5  # of Cairn's in each turn, together about as long as torch's


def item_of_tensor(fqn: str, size: torch.Size, chunk: ChunkStorageMetadata) -> WriteItem:
    data = TensorWriteData(chunk, TensorProperties(dtype=torch.float32), size)
    return WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD, tensor_data=data)


def name_of(kind: str, number: int) -> str:
    return f"model.layers.{number // 9}.block.{number % 9}.{kind}"


def plan_of(rank: int, ranks: int) -> SavePlan:
    """Returns a rank's plan as sent to the coordinator.

    Plans of different ranks share no objects, as after unpickling.
    """
    items = []
    for number in range(SHARDED):
        chunk = ChunkStorageMetadata(torch.Size((rank * ROWS, 0)), torch.Size((ROWS, COLUMNS)))
        items.append(item_of_tensor(name_of("weight", number), torch.Size((ranks * ROWS, COLUMNS)), chunk))
    for number in range(REPLICATED):
        chunk = ChunkStorageMetadata(torch.Size((0,)), torch.Size((COLUMNS,)))
        items.append(item_of_tensor(name_of("norm", number), torch.Size((COLUMNS,)), chunk))
    items += [WriteItem(MetadataIndex(name_of("step", number)), WriteItemType.BYTE_IO) for number in range(VALUES)]
    return SavePlan(items)


@dataclass
class Planned:
    seconds: float
    mib: float  # at the peak, beyond the gathered plans
    writes: int  # items


def plan_with_torch(plans: list[SavePlan]) -> Planned:
    gc.collect()
    gc.disable()
    peak, start = PeakMemory(), time.perf_counter()
    global_plan, metadata = create_default_global_save_plan(dedup_save_plans(plans))
    errors = _validate_global_plan(global_plan, metadata)
    seconds, mib = time.perf_counter() - start, peak.mib()
    gc.enable()
    if errors:
        raise SystemExit(errors[0])
    return Planned(seconds, mib, sum(len(plan.items) for plan in global_plan))


def plan_with_cairn(program: Path, ranks: int) -> Planned:
    command = [str(program), *map(str, (ranks, SHARDED, REPLICATED, VALUES))]
    return Planned(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def measure_planning(program: Path) -> dict[str, dict[str, float]]:
    """Seconds and MiB by figure and peer."""
    figures = {}
    for ranks in RANK_COUNTS:
        stock = plan_with_torch([plan_of(rank, ranks) for rank in range(ranks)])
        ours = plan_with_cairn(program, ranks)
        if ours.writes != stock.writes:
            raise SystemExit(f"{ranks} ranks: Cairn writes {ours.writes} items, torch {stock.writes}")
        figures[f"planning {ranks}"] = {"cairn": ours.seconds, "torch": stock.seconds}
        figures[f"planning memory {ranks}"] = {"cairn": ours.mib, "torch": stock.mib}
    return figures


def describe_with_cairn(state_dict: dict[str, Any]) -> Any:
    """Describes the state as cairn.save does."""
    state = _engine.StateDict()
    tensors = TensorSource(state)
    tensors.add_leaves(state_dict, Rules.TORCH_2_4, refuse_value)
    return state, tensors


def refuse_value(path: Any, value: object) -> None:
    raise AssertionError(f"{path}: {value}")


def plan_locally_with_torch(state_dict: dict[str, Any]) -> Any:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state_dict, None, True)
    return planner, planner.create_local_plan()


def seconds_of(action: Callable[[], Any]) -> float:
    """Returns the seconds of a call. The call's result is freed outside the measurement."""
    start = time.perf_counter()
    result = action()
    seconds = time.perf_counter() - start
    del result
    return seconds


def measure_local_plan(program: Path) -> dict[str, dict[str, float]]:
    """Returns seconds by figure and peer, for a rank's plan of many small tensors."""
    # Names and shapes as in local_plan.cc.
    state_dict = {"model": {f"layers.{i}.weight": torch.zeros(4, 4) for i in range(LOCAL_TENSORS)}}
    command = [str(program), str(LOCAL_TENSORS), str(LOCAL_TRIES)]
    described, encoded, stock = [], [], []
    gc.collect()
    gc.disable()
    for _ in range(LOCAL_REPEATS):
        described += [seconds_of(lambda: describe_with_cairn(state_dict)) for _ in range(LOCAL_TRIES)]
        native = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        encoded.append(native["encode"])
        stock.append(seconds_of(lambda: plan_locally_with_torch(state_dict)))
    gc.enable()
    return {
        "local plan": {"cairn": min(described) + min(encoded), "torch": min(stock)},
        "local plan, its bytes": {"cairn": min(encoded)},
    }
