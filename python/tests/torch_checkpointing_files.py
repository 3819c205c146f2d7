"""Directories as Meta's package torch_checkpointing writes them, made of plain dicts and torch.save."""

import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

Placements = tuple[Any, ...]


def mesh_of(shape: tuple[int, ...], ranks: list[int]) -> dict[str, Any]:
    return {"device_type": "cpu", "mesh_shape": shape, "mesh_data": tuple(ranks), "mesh_dim_names": None}


def placement(of: Any) -> dict[str, Any]:
    if isinstance(of, _StridedShard):
        return {"type": "StridedShard", "dim": of.dim, "split_factor": int(of.split_factor)}
    return {"type": "Shard", "dim": of.dim} if isinstance(of, Shard) else {"type": "Replicate"}


def of_dtensor(whole: torch.Tensor, mesh: dict[str, Any], placements: Placements) -> list[dict[str, Any]]:
    data = {
        "global_shape": list(whole.shape),
        "dtype": str(whole.dtype),
        "stride": list(whole.stride()),
        "mesh_spec": mesh,
        "placements": [placement(each) for each in placements],
    }
    sharding = {"type": "DTensorShardingMetadata", "data": data}
    return [{"sharding_metadata": sharding, "ranks": tuple(sorted(mesh["mesh_data"]))}]


def local_of(whole: torch.Tensor, mesh: dict[str, Any], placements: Placements, rank: int) -> torch.Tensor:
    """The part of a rank, as torch cuts tensors."""
    at = mesh["mesh_data"].index(rank)
    coordinate = list(itertools.product(*(range(size) for size in mesh["mesh_shape"])))[at]
    local = whole
    for size, index, each in zip(mesh["mesh_shape"], coordinate, placements, strict=True):
        if isinstance(each, Replicate):
            continue
        local = each._split_tensor(local, size, with_padding=False)[0][index]
    return local.clone()


def write_metadata(
    directory: Path,
    items: dict[str, dict[tuple[Any, ...], list[dict[str, Any]]]],
    world_size: int,
    layouts: dict[str, dict[int, dict[str, Any] | None]] | None = None,
    version: str = "2.0",
) -> None:
    layouts = {} if layouts is None else layouts
    by_item = {name: {**dict.fromkeys(range(world_size)), **layouts.get(name, {})} for name in items | layouts}
    metadata: dict[str, Any] = {"world_size": world_size, "version": version}
    if version == "2.0":
        metadata["metadata"] = {
            name: {
                "nested_path_to_metadata": {json.dumps(list(path)): of for path, of in paths.items()},
                "rank_to_layout_info": by_item[name],
            }
            for name, paths in items.items()
        }
    else:
        metadata["metadata"] = {
            json.dumps([name, *path]): of for name, paths in items.items() for path, of in paths.items()
        }
        metadata["rank_to_layout_info_mappings"] = {
            rank: {name: ranks[rank] for name, ranks in by_item.items()} for rank in range(world_size)
        }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metadata.pkl").write_bytes(pickle.dumps(metadata))


def layout(path: str, form: str, **more: Any) -> dict[str, Any]:
    return {"file_path": path, "serialization_format": {"type": form, **more}}


def write_sharded(directory: Path, whole: torch.Tensor, mesh: dict[str, Any], placements: Placements) -> None:
    """One tensor, `model.w`, on the ranks of a mesh."""
    ranks = mesh["mesh_data"]
    assert math.prod(mesh["mesh_shape"]) == len(ranks)
    write_metadata(directory, {"model": {("w",): of_dtensor(whole, mesh, placements)}}, max(ranks) + 1)
    for rank in ranks:
        torch.save({"w": local_of(whole, mesh, placements, rank)}, directory / f"model_{rank}.pt")
