"""The write items of a torch save plan, written by the engine."""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from cairn import _engine
from cairn._state.flattening import Path
from cairn._state.tensors import TensorSource
from cairn.errors import InvalidArgument


@dataclass(frozen=True)
class Written(WriteResult):
    """A WriteResult with the entry of the item's file in the checkpoint's commit record, for the coordinator."""

    file: tuple[str, int, int]  # name, size, trailer checksum
    dtype: torch.dtype | None  # of the written tensor, if the plan has another dtype


class ResolvedItems:
    """The data of a plan's items, as the engine takes it. Keeps the memory alive to which `native` points."""

    def __init__(self, items: Iterable[tuple[WriteItem, Any]], planner_data: Any) -> None:
        """`items`: each item with its data, a tensor or BytesIO. Raises InvalidArgument if data differs from its
        item."""
        self.native = _engine.StateDict()
        #: By item the dtype of the tensor, if the plan has another dtype.
        self.dtypes: list[torch.dtype | None] = []
        self._tensors = TensorSource(self.native)
        for item, data in items:
            path = _path_of(item.index.fqn, planner_data)
            if item.type is WriteItemType.BYTE_IO:
                _add_bytes(self.native, path, data)
                self.dtypes.append(None)
            else:
                self.dtypes.append(_add_tensor(self._tensors, path, item, data))

    def keys_of_moved(self) -> list[str]:
        """Returns the keys of tensors whose memory has since been freed or moved by ``storage.resize_()``."""
        return self._tensors.keys_of_moved()


def write_items(
    plan: SavePlan, planner: SavePlanner, write: Callable[[_engine.StateDict], _engine.RankShare]
) -> list[WriteResult]:
    """Writes the data that `planner` resolves for the plan's items, by `write`, and hands the published files to the
    coordinator.

    Raises InvalidArgument if an item's data differs from the plan.
    """
    state = ResolvedItems(((item, planner.resolve_data(item)) for item in plan.items), plan.planner_data)
    share = write(state.native)
    files = share.files
    results: list[WriteResult] = []
    for item, dtype, (file, offset, length) in zip(plan.items, state.dtypes, share.places, strict=True):
        info = _StorageInfo(files[file][0], offset, length)
        results.append(Written(item.index, length, info, files[file], dtype))
    share.hand_over()
    return results


def metadata_of(metadata: Metadata, results: Iterable[list[WriteResult]]) -> list[tuple[str, int, int]]:
    """Fills the places of all items into `metadata`, and returns the data files of all ranks."""
    storage_data = {}
    files = {}
    for result in (result for of_rank in results for result in of_rank):
        if not isinstance(result, Written):
            raise InvalidArgument(
                f"the result for '{result.index.fqn}' does not come from this writer", key=result.index.fqn
            )
        storage_data[result.index] = result.storage_data
        files[result.file[0]] = result.file
        saved = metadata.state_dict_metadata.get(result.index.fqn)
        if result.dtype is not None and isinstance(saved, TensorStorageMetadata):
            # A planner may convert tensors without changing its plan. Stock torch then writes metadata that contradicts
            # the files, and a load that trusts the metadata fills tensors wrongly.
            properties = replace(saved.properties, dtype=result.dtype)
            metadata.state_dict_metadata[result.index.fqn] = replace(saved, properties=properties)
    metadata.storage_data = storage_data
    return list(files.values())


def _path_of(fqn: str, places: Any) -> Path:
    """Returns the path of the key in the nested state, if the planner gives the path; otherwise the key alone."""
    path = places.get(fqn) if isinstance(places, dict) else None
    if not isinstance(path, tuple) or any(type(element) not in (str, int) for element in path):
        return (fqn,)
    return path if ".".join(map(str, path)) == fqn else (fqn,)


def _add_bytes(state: _engine.StateDict, path: Path, data: Any) -> None:
    if not isinstance(data, io.BytesIO):
        key = ".".join(map(str, path))
        raise InvalidArgument(
            f"the planner has no bytes for '{key}'", key=key, expected="BytesIO", actual=type(data).__name__
        )
    state.add_serialized_value(path, data.getvalue())


def _add_tensor(tensors: TensorSource, path: Path, item: WriteItem, data: Any) -> torch.dtype | None:
    key = item.index.fqn
    planned = item.tensor_data
    if planned is None:
        raise InvalidArgument(f"the write item of the tensor '{key}' has no size", key=key)
    if not isinstance(data, torch.Tensor):
        raise InvalidArgument(
            f"the planner has no tensor for '{key}'", key=key, expected="Tensor", actual=type(data).__name__
        )
    if data.shape != planned.chunk.sizes:
        raise InvalidArgument(
            f"'{key}': the shape of the planner's tensor differs from its plan",
            key=key,
            expected=str(tuple(planned.chunk.sizes)),
            actual=str(tuple(data.shape)),
        )
    tensors.add_part(path, data, planned.size, planned.chunk.offsets)
    return data.dtype if data.dtype != planned.properties.dtype else None
