"""Saves by managers of torch_checkpointing: Cairn's, and two ways in which the package itself overwrites a checkpoint.

Without a resharder: each rank has its own files, `model_<rank>.pt` and `progress_<rank>.pt`.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_checkpointing as stock
from tally import Problem
from torch.distributed.tensor import DTensor
from torch_checkpointing.checkpoint_writer import CheckpointWriterConfig
from torch_checkpointing.config import SyncCheckpointSaverConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from cairn import torch_checkpointing as ours

DEEDS = {
    "cairn": "save as torch_checkpointing",
    "delete": "delete, and save by torch_checkpointing",
    "in place": "save in place by torch_checkpointing",
}


class ManagedSave:
    """Saves by one manager per process, which is made at the first save."""

    def __init__(self, make: Callable[[], Any], deletes: bool = False) -> None:
        self._make = make
        self._deletes = deletes
        self._manager: Any = None

    def __call__(self, state_dict: dict[str, Any], checkpoint_id: str) -> None:
        if self._manager is None:
            self._manager = self._make()
        if self._deletes:
            if dist.get_rank() == 0:
                shutil.rmtree(checkpoint_id, ignore_errors=True)
            dist.barrier()
        model = {name: _local(tensor) for name, tensor in state_dict["model"].items()}
        self._manager.save(checkpoint_id, {"model": model, "progress": state_dict["progress"]})


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _stock(writes_in_place: bool) -> Any:
    writer = CheckpointWriterConfig(write_to_temp_dir=not writes_in_place)
    config = stock.CheckpointManager.Config(
        save=SyncCheckpointSaverConfig(writer_config=writer),
        storage_config=LocalFileSystemStorageConfig(use_direct_io=False),  # its default fails with torch.save
    )
    return stock.CheckpointManager(config)


def _cairns() -> Any:
    return ours.CheckpointManager(ours.CheckpointManager.Config(save=SyncCheckpointSaverConfig(), files="theirs"))


def managed_saves() -> dict[str, ManagedSave]:
    """Returns the saves by the names of DEEDS."""
    return {
        DEEDS["cairn"]: ManagedSave(_cairns),
        DEEDS["delete"]: ManagedSave(lambda: _stock(False), deletes=True),
        DEEDS["in place"]: ManagedSave(lambda: _stock(True)),
    }


def step_of_directory(directory: Path, ranks: int) -> int:
    """Returns the step that the files of all ranks hold. Raises Problem for a mixture of steps, OSError for none."""
    steps = set()
    for rank in range(ranks):
        for item in ("model", "progress"):
            try:
                value = torch.load(directory / f"{item}_{rank}.pt")
            except (EOFError, RuntimeError) as error:
                raise OSError(f"{item}_{rank}.pt can't be loaded: {error}") from None
            tensors = value.values() if item == "model" else [torch.tensor([value["step"] << 32])]
            steps |= {step for tensor in tensors for step in (tensor >> 32).unique().tolist()}
    if len(steps) > 1:
        raise Problem(f"a mixture of the steps {sorted(steps)}")
    return int(steps.pop())
