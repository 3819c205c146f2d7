"""The read items of a torch load plan, read by the engine: directly into the planner's tensors, every byte checked."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint._hf_utils import _HFStorageInfo
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from cairn import _engine
from cairn._state.tensors import TensorTarget, fill, needs_payload, tensor_in_payload
from cairn._state.values import payload_without_code
from cairn._torch_protocol.hooks import overridden
from cairn.errors import InvalidArgument, MissingKey

# The bytes of tensors that share a call of the engine. Tensors on other devices have copies in CPU memory during the
# call.
_BATCH_BYTES_MAX = 1 << 30

# If a planner has torch's versions of these hooks, its tensors are the tensors of the state dict, all available at
# once.
_TENSOR_HOOKS = ("resolve_tensor", "commit_tensor", "lookup_tensor", "transform_tensor")


class _Chunk(NamedTuple):
    """The content at a place of a data file. `key` is the key in the checkpoint's own metadata."""

    key: str
    length: int  # in bytes
    shape: tuple[int, ...] = ()  # of the whole tensor
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    is_tensor: bool = True


# The offset of a chunk in a DCP data file; for a safetensors file, the key and the chunk's offsets in the tensor.
_Inside = int | tuple[str, tuple[int, ...]]


class ItemReader:
    """Reads items of an open checkpoint.

    `storage_data` gives the place of each item. For DCP files its keys are not compared with the checkpoint's keys,
    because some readers rename keys in the metadata. Tensors in safetensors files, in `model_directory`, are found
    by key, as by torch. `options` are the options of the engine's loads. torch's own planner unpickles
    its values: such a planner gets values that ``cairn.load`` has read, with `allow_pickle` as in cairn.load, and that
    this process has pickled. A planner that overrides ``load_bytes`` gets the stored bytes.
    """

    def __init__(
        self,
        checkpoint: _engine.Checkpoint,
        storage_data: Mapping[MetadataIndex, Any],
        options: dict[str, Any],
        allow_pickle: bool,
        model_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._storage_data = storage_data
        self._options = options
        self._payload_options = {name: value for name, value in options.items() if name != "allow_cast"}
        self._allow_pickle = allow_pickle
        self._catalog = _engine.catalog_of(checkpoint)
        self._chunks = _chunks_by_place(self._catalog, model_directory)
        #: Float conversions and casts of the tensors read: key, saved dtype code, wanted dtype code.
        self.conversions: list[tuple[str, int, int]] = []

    def knows(self, item: ReadItem) -> bool:
        """Returns whether the engine can read the item: without stream transforms, and at a place in the checkpoint's
        metadata."""
        return not self._transforms_of(item) and self.has_chunk(item)

    def is_transformed(self, item: ReadItem) -> bool:
        """Returns whether cairn._torch_protocol.transformed_items must read the item."""
        return bool(self._transforms_of(item)) and self.has_chunk(item)

    def has_chunk(self, item: ReadItem) -> bool:
        """Returns whether the checkpoint's own metadata has the item at the item's place, transformed or not."""
        chunk = self._chunks.get(self._place_of(item))
        return chunk is not None and chunk.is_tensor == (item.type is not LoadItemType.BYTE_IO)

    def read(self, items: list[ReadItem], planner: LoadPlanner) -> None:
        """Reads the items, values first: a value that can't be decoded raises before a tensor changes."""
        for item in items:
            if item.type is LoadItemType.BYTE_IO:
                self._read_value(item, planner)
        tensors = [item for item in items if item.type is not LoadItemType.BYTE_IO]
        if not is_stock(planner, *_TENSOR_HOOKS):
            # the planner may hold a single tensor at a time, and may expect its commit before the next
            for item in tensors:
                self._read_tensors([item], planner)
            return
        batch: list[ReadItem] = []
        batch_bytes = 0
        for item in tensors:
            batch.append(item)
            batch_bytes += self._chunk_of(item).length
            if batch_bytes >= _BATCH_BYTES_MAX:
                self._read_tensors(batch, planner)
                batch, batch_bytes = [], 0
        self._read_tensors(batch, planner)

    def info_of(self, item: ReadItem) -> Any:
        """Returns the place of the item, a ``_StorageInfo`` or ``_HFStorageInfo`` of torch. Raises MissingKey."""
        info = self._storage_data.get(item.storage_index)
        if info is None:
            key = item.storage_index.fqn
            raise MissingKey(f"the checkpoint has no bytes for '{key}' at {item.storage_index.offset}", key=key)
        return info

    def stored_tensor_of(self, item: ReadItem) -> tuple[tuple[int, ...], int]:
        """Returns the sizes and the dtype code of the chunk that holds a tensor item. The item must satisfy
        has_chunk()."""
        chunk = self._chunk_of(item)
        tensor = self._catalog.tensor(chunk.key)
        assert tensor is not None  # otherwise the chunk would be a value's
        return chunk.sizes, tensor[0]

    def _chunk_of(self, item: ReadItem) -> _Chunk:
        return self._chunks[self._place_of(item)]

    def _place_of(self, item: ReadItem) -> tuple[str, _Inside]:
        info = self.info_of(item)
        if not isinstance(info, _HFStorageInfo):
            return info.relative_path, info.offset
        index = item.storage_index
        return str(Path(info.relative_path)), (index.fqn, tuple(index.offset or ()))

    def _transforms_of(self, item: ReadItem) -> Any:
        info = self.info_of(item)
        return None if isinstance(info, _HFStorageInfo) else info.transform_descriptors

    def _read_value(self, item: ReadItem, planner: LoadPlanner) -> None:
        key = self._chunk_of(item).key
        payload = self._checkpoint.read_payload(key, **self._payload_options)
        if is_stock(planner, "load_bytes"):
            payload = payload_without_code(key, payload, self._allow_pickle)
        planner.load_bytes(item, io.BytesIO(payload))

    def _read_tensors(self, items: list[ReadItem], planner: LoadPlanner) -> None:
        state = _engine.StateDict()
        targets = TensorTarget(
            state,
            saved_form=self._checkpoint.tensor_form,
            allow_pickle=self._allow_pickle,
            allow_cast=bool(self._options.get("allow_cast")),
        )
        resolved = []
        for item in items:
            chunk = self._chunk_of(item)
            target = planner.resolve_tensor(item).detach()
            resolved.append((item, target))
            _check_fits(item, chunk, target)
            if needs_payload(target):
                payload = self._checkpoint.read_payload(chunk.key, **self._payload_options)
                fill(target, tensor_in_payload(chunk.key, target, payload, self._allow_pickle))
                continue
            offsets = [first + inside for first, inside in zip(chunk.offsets, item.storage_offsets, strict=True)]
            targets.add_part((chunk.key,), target, chunk.shape, offsets)
        if len(state):
            conversions, _ = self._checkpoint.load(state, **self._options, take_archive=targets.take_archive)
            self.conversions += conversions + targets.conversions
            targets.finish(set())
        for item, target in resolved:
            planner.commit_tensor(item, target)


class PlannerWithoutCode:
    """A planner for torch's own ``read_data``: Cairn reads the values first that torch's planner would unpickle."""

    def __init__(self, planner: LoadPlanner, allow_pickle: bool) -> None:
        self._planner = planner
        self._allow_pickle = allow_pickle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)

    def load_bytes(self, item: ReadItem, value: io.BytesIO) -> None:
        """As the planner's; raises UnsafeContent for a value that can't be made without running its pickle."""
        if is_stock(self._planner, "load_bytes"):
            value = io.BytesIO(payload_without_code(item.dest_index.fqn, value.read(), self._allow_pickle))
        self._planner.load_bytes(item, value)


def _check_fits(item: ReadItem, chunk: _Chunk, target: torch.Tensor) -> None:
    if target.shape != item.lengths:
        raise InvalidArgument(
            f"'{item.dest_index.fqn}': the shape of the planner's tensor differs from its plan",
            key=item.dest_index.fqn,
            expected=str(tuple(item.lengths)),
            actual=str(tuple(target.shape)),
        )
    boxes = list(zip(item.storage_offsets, item.lengths, chunk.sizes, strict=False))
    fits = len(boxes) == len(item.storage_offsets) == len(chunk.sizes)
    if not fits or any(first < 0 or first + length > size for first, length, size in boxes):
        raise InvalidArgument(
            f"a read item of '{chunk.key}' reaches outside its chunk",
            key=chunk.key,
            expected=f"within {chunk.sizes}",
            actual=f"{tuple(item.lengths)} at {tuple(item.storage_offsets)}",
        )


def is_stock(planner: LoadPlanner, *hooks: str) -> bool:
    """Returns whether the planner's methods `hooks` are torch's own."""
    return not overridden(planner, hooks, (DefaultLoadPlanner,))


def _chunks_by_place(
    catalog: _engine.Catalog, model_directory: str | os.PathLike[str] | None
) -> dict[tuple[str, _Inside], _Chunk]:
    chunks: dict[tuple[str, _Inside], _Chunk] = {}
    for key in catalog.keys():  # noqa: SIM118 - not a mapping
        tensor = catalog.tensor(key)
        if tensor is None:
            file, offset, length = catalog.value(key) or (None, 0, 0)
            if file is not None:
                chunks[file, offset] = _Chunk(key, length, is_tensor=False)
            continue
        _, shape, _, parts, _ = tensor
        for offsets, sizes, file, offset, length in parts:
            if file is None:
                continue
            chunk = _Chunk(key, length, shape, tuple(offsets), tuple(sizes))
            if model_directory is None:
                chunks[file, offset] = chunk
            else:
                chunks[str(Path(model_directory) / file), (key, chunk.offsets)] = chunk
    return chunks
