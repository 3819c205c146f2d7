"""The checkpoint that a rank saved alone: ``__{rank}.metadata`` and the data files named there, read by the engine."""

import json
import math
import os
from collections.abc import Sequence
from typing import Any

import torch

from cairn import _engine
from cairn._directory import SizeLimit, metadata_name
from cairn._settings import links_followed
from cairn._state.saved_tree import SHAPE, Branch, Leaf, NestedShape, Slot, shape_in, tree_of_paths
from cairn._state.tensors import TensorTarget, fill, needs_payload, tensor_in_payload
from cairn._state.torch_codes import DTYPES, QUANTIZED, dtype_name
from cairn._state.values import load_value
from cairn.checkpointer.selection import Reading
from cairn.errors import Unsupported


class SavedRank:
    """A source for :class:`cairn.checkpointer.selection.Selection`. Raises NotFound if the rank has saved nothing.

    `rank` None: the checkpoint that all ranks saved together. `to_devices`: the engine writes to the memory of CUDA
    devices.
    """

    def __init__(self, directory: bytes, rank: int | None, reading: Reading, *, to_devices: bool = False) -> None:
        self._directory = directory
        self._to_devices = to_devices
        self._checkpoint = _engine.open(directory, metadata_name(rank))
        self._catalog = _engine.catalog_of(self._checkpoint)
        self._reading = reading

    @property
    def notes(self) -> dict[str, Any]:
        """The notes of the save; empty if none. Raises Corrupt."""
        text = self._checkpoint.notes()
        notes: dict[str, Any] = json.loads(text) if text else {}
        return notes

    def tree(self) -> Branch:
        """Returns the tree of the saved state. Raises Corrupt."""
        paths = self._catalog.paths()
        shape = NestedShape({}, [])
        leaves = []
        for key in self._catalog.keys():  # noqa: SIM118 - not a mapping
            if key == SHAPE:
                shape = shape_in(load_value(key, self._payloads([key])[0], allow_pickle=False))
            else:
                leaves.append((paths.get(key, (key,)), self._leaf(key)))
        return tree_of_paths(leaves, shape)

    def read_values(self, slots: Sequence[Slot]) -> None:
        """Reads and decodes the values of `slots`. Raises UnsafeContent for values that must not be unpickled."""
        payloads = self._payloads([slot.leaf.key for slot in slots])
        for slot, payload in zip(slots, payloads, strict=True):
            slot.value = load_value(slot.leaf.key, payload, self._reading.allow_pickle, self._reading.map_location)

    def read_tensors(self, slots: Sequence[Slot]) -> None:
        """Fills the targets of `slots`, and makes new tensors for slots without a target."""
        state = _engine.StateDict()
        targets = TensorTarget(
            state,
            to_devices=self._to_devices,
            saved_form=self._checkpoint.tensor_form,
            allow_pickle=self._reading.allow_pickle,
        )
        new: list[Slot] = []
        limit = SizeLimit(self._checkpoint, os.fsdecode(self._directory))
        for slot in slots:
            slot.value = slot.target
            if slot.target is None:
                new.append(slot)
            if slot.leaf.dtype in QUANTIZED or needs_payload(slot.target):
                self._read_opaque(slot)
                continue
            if slot.target is None:
                assert slot.leaf.dtype is not None
                held = sum(length for *_, length in self._info(slot.leaf.key)[3])
                limit.add(slot.leaf.key, slot.leaf.part_shape or slot.leaf.shape, slot.leaf.dtype.itemsize, held)
                slot.value = torch.empty(slot.leaf.part_shape or slot.leaf.shape, dtype=slot.leaf.dtype, device="cpu")
            self._add_target(targets, slot.leaf, slot.value)
        self._load(state, take_archive=targets.take_archive)
        targets.finish(set())
        for slot in new:
            _, _, requires_grad, *_ = self._info(slot.leaf.key)
            slot.value = self._reading.place(slot.value).requires_grad_(requires_grad)

    def _load(self, state: _engine.StateDict, **options: Any) -> None:
        self._checkpoint.load(state, verify=self._reading.verify, follow_links=links_followed(None), **options)

    def _leaf(self, key: str) -> Leaf:
        if self._catalog.tensor(key) is None:
            return Leaf(key, None)
        code, shape, _, chunks, _ = self._info(key)
        dtype = DTYPES.get(code)
        if dtype is None:
            raise Unsupported(f"this torch has no {dtype_name(code)}: '{key}'", key=key, actual=dtype_name(code))
        boxes = {(tuple(offsets), tuple(sizes)) for offsets, sizes, *_ in chunks}
        is_whole = sum(math.prod(sizes) for _, sizes in boxes) == math.prod(shape)
        part = None if is_whole or len(boxes) != 1 else next(iter(boxes))
        return Leaf(key, part, dtype, shape, part_shape=None if part is None else part[1])

    def _info(self, key: str) -> Any:
        return self._catalog.tensor(key)

    @staticmethod
    def _add_target(targets: TensorTarget, leaf: Leaf, tensor: torch.Tensor) -> None:
        if leaf.part_shape is not None and tuple(tensor.shape) == leaf.part_shape:
            targets.add_part((leaf.key,), tensor, leaf.shape, leaf.content[0])
        else:
            targets.add((leaf.key,), tensor)

    def _read_opaque(self, slot: Slot) -> None:
        """Reads a tensor that only torch can read."""
        leaf = slot.leaf
        state = _engine.StateDict()
        state.add_serialized_tensor((leaf.key,), b"", self._info(leaf.key)[0], leaf.shape, False)
        self._load(state)
        shape_only = torch.empty(leaf.shape, device="meta") if slot.target is None else slot.target
        saved = tensor_in_payload(leaf.key, shape_only, state.payload(0), self._reading.allow_pickle)
        if slot.target is None:
            slot.value = saved
        else:
            fill(slot.target, saved)

    def _payloads(self, keys: Sequence[str]) -> list[bytes]:
        if not keys:
            return []
        state = _engine.StateDict()
        for key in keys:
            state.add_serialized_value((key,), b"")
        self._load(state)
        return [state.payload(i) for i in range(len(keys))]
