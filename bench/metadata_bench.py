"""`.metadata` of a large job: the time of Cairn and of Python's pickle to read and to write an equal graph."""

import gc
import json
import pickle
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

RANKS = 512
TENSORS = 900  # 460,800 chunks
ROWS = 8  # of each tensor, on each rank


def metadata_of_large_job() -> Metadata:
    """Returns metadata in which every tensor has a chunk per rank, and every rank a file."""
    tensors: dict[str, Any] = {}
    storage: dict[MetadataIndex, _StorageInfo] = {}
    length = ROWS * 1024 * 4 + 1577
    for number in range(TENSORS):
        fqn = f"model.layers.{number // 9}.block.{number % 9}.weight"
        chunks = [ChunkStorageMetadata(torch.Size((rank * ROWS, 0)), torch.Size((ROWS, 1024))) for rank in range(RANKS)]
        properties = TensorProperties(dtype=torch.float32)
        tensors[fqn] = TensorStorageMetadata(properties, torch.Size((RANKS * ROWS, 1024)), chunks)
        for rank, chunk in enumerate(chunks):
            index = MetadataIndex(fqn, chunk.offsets, rank)
            storage[index] = _StorageInfo(f"__{rank}_0.distcp", number * length, length)
    return Metadata(
        state_dict_metadata=tensors,
        planner_data={fqn: tuple(fqn.split(".", 1)) for fqn in tensors},
        storage_data=storage,
        storage_meta=StorageMeta(checkpoint_id="large", save_id="00000000-0000-0000-0000-000000000000"),
        version="1.0.0",
    )


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def measure_metadata(program: Path, scratch: Path) -> dict[str, dict[str, float]]:
    """Returns seconds by figure and peer.

    `program` is the C++ side: the program reads the file and writes an equal graph.
    """
    metadata = metadata_of_large_job()
    write_seconds, pickled = timed(lambda: pickle.dumps(metadata))
    read_seconds, _ = timed(lambda: pickle.loads(pickled))
    file = scratch / "large.metadata"
    file.write_bytes(pickled)
    rewritten = scratch / "rewritten.metadata"
    command = [str(program), str(file), str(rewritten)]
    ours = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    if pickle.loads(rewritten.read_bytes()) != metadata:
        raise SystemExit("what Cairn wrote is not what it read")
    return {
        "metadata read": {"cairn": ours["read"], "pickle": read_seconds},
        "metadata write": {"cairn": ours["write"], "pickle": write_seconds},
    }
