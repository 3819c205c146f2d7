"""The file of torch's own CheckpointWriter: ``checkpoint_{rank}.pt``, one ``torch.save`` of the whole state.

torch.load, by the rules of ``weights_only=True`` unless the caller allows pickles to run, gives the nested state and
the values; the file is memory-mapped, and torch reads no element. The engine reads the selected tensors and compares
checksums, which torch ignores. The legacy format has no checksums.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from cairn import _engine
from cairn._directory import open_checkpoint
from cairn._state.flattening import flatten
from cairn._state.saved_tree import Branch, Leaf, Node, Slot
from cairn._state.tensors import TensorTarget, fill
from cairn._torch_files.torch_file import load_torch_file
from cairn.checkpoint import Verify
from cairn.errors import Corrupt, InvalidArgument, Unsupported


class TorchArchive:
    """A source for :class:`cairn.checkpointer.selection.Selection`."""

    def __init__(
        self,
        file: Path,
        *,
        allow_pickle: bool,
        verify: Verify,
        place: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    ) -> None:
        """`place` moves a new tensor from the CPU to the requested device."""
        self._file = file
        self._allow_pickle = allow_pickle
        self._place = place
        # "needed" would not check a record of which only a part is read
        self._verify = "none" if verify == "none" else "full"
        self._checkpoint: _engine.Checkpoint | None = None  # None: a file that only torch can read
        self._keys: dict[int, str] = {}  # the engine's keys of the objects in the state, by the objects' ids

    def tree(self) -> Branch:
        """Returns the tree of the saved state. Raises UnsafeContent, Corrupt."""
        tree = self.node()
        if not isinstance(tree, Branch) or tree.is_list:
            raise Corrupt(f"{self._file.name} holds no state dict", file=self._file.name)
        return tree

    def node(self) -> Node:
        """As tree(), for a file that may hold any value in place of a state."""
        try:
            self._checkpoint = open_checkpoint(self._file)  # checks the pickle
        except Unsupported:
            if not self._allow_pickle:
                # raises the error of torch's rules, if they refuse
                load_torch_file(self._file, allow_pickle=False, check=False)
        # The engine checks the records that it reads.
        check = self._checkpoint is None and self._verify != "none"
        state = load_torch_file(self._file, self._allow_pickle, check=check)
        tree = _tree_of(state, "")
        if self._checkpoint is not None and _has_equal_texts(state):
            # The engine names such keys otherwise than flatten(): torch reads the elements.
            self._checkpoint = None
            if self._verify != "none":
                load_torch_file(self._file, self._allow_pickle)
        if self._checkpoint is not None:
            for leaf in flatten(state):
                for part in _parts_of(leaf.value):
                    self._keys[id(part)] = leaf.fqn
        return tree

    def read_values(self, slots: Sequence[Slot]) -> None:
        """Sets the values, which tree() has already read, and checks the tensors inside values."""
        for slot in slots:
            if _holds_tensor(slot.leaf.content):
                self._check(slot)
            slot.value = slot.leaf.content

    def read_tensors(self, slots: Sequence[Slot]) -> None:
        """Fills the targets of `slots`, and makes new tensors for slots without a target. Raises Corrupt for a checksum
        that differs."""
        state = _engine.StateDict()
        targets = TensorTarget(state)
        opaque: list[Slot] = []
        for slot in slots:
            source = slot.leaf.content
            slot.value = slot.target
            if slot.target is None:
                slot.value = torch.empty_like(source.detach(), device="cpu") if _is_plain(source) else source
            key = self._keys.get(id(source))
            if key is None or not _is_plain(source) or not _is_plain(slot.value):
                opaque.append(slot)
            else:
                targets.add_part((key,), slot.value.detach(), slot.value.shape, (0,) * slot.value.dim())
        for slot in opaque:
            self._check(slot)
        if self._checkpoint is not None:
            self._checkpoint.load(state, verify=self._verify)
        targets.finish(set())
        for slot in opaque:
            if slot.target is None:
                slot.value = slot.leaf.content.detach().clone()
            else:
                fill(*_parts_of_rank(slot.target, slot.leaf.content))
        for slot in slots:
            if slot.target is None:
                slot.value = self._place(slot.value).requires_grad_(slot.leaf.content.requires_grad)

    def _check(self, slot: Slot) -> None:
        """Compares the checksums of an entry that torch has read."""
        key = self._keys.get(id(slot.leaf.content))
        if self._checkpoint is not None and key is not None and self._verify != "none":
            self._checkpoint.read_payload(key, verify=self._verify)


def _parts_of_rank(target: Any, source: Any) -> tuple[Any, Any]:
    """Returns the local tensors of two DTensors with equal placements: the file may have another object for the
    mesh."""
    if isinstance(target, DTensor) and isinstance(source, DTensor) and target.placements == source.placements:
        return target._local_tensor, source._local_tensor
    return target, source


def _has_equal_texts(state: Any) -> bool:
    """Returns whether two keys of one dict in the state have the same text."""
    try:
        _engine.refuse_equal_texts(state)
    except InvalidArgument:
        return True
    return False


def _is_plain(tensor: Any) -> bool:
    """Returns whether the engine can read, or fill, the tensor."""
    is_simple = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_simple and tensor.layout is torch.strided and not tensor.is_quantized


def _parts_of(value: Any) -> Iterator[Any]:
    """Yields the object and the items of its nested lists, which the tree has apart."""
    yield value
    if isinstance(value, list):
        for item in value:
            yield from _parts_of(item)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (tuple, list, set)) and any(_holds_tensor(item) for item in value)


def _tree_of(value: Any, key: str) -> Node:
    """Returns the tree of a state in memory. Raises RecursionError for a state that contains itself."""
    if isinstance(value, Mapping):
        texts = [str(name) for name in value]
        has_equal_texts = len(set(texts)) < len(texts)
        unique = list(value) if has_equal_texts else texts
        entries = {
            text: _tree_of(part, f"{key}.{name}" if key else str(name))
            for text, (name, part) in zip(unique, value.items(), strict=True)
        }
        return Branch(entries, dict(zip(unique, value, strict=True)), has_equal_texts=has_equal_texts)
    if isinstance(value, list):
        return Branch({i: _tree_of(part, f"{key}[{i}]") for i, part in enumerate(value)}, is_list=True)
    if isinstance(value, torch.Tensor):
        return Leaf(key, value, value.dtype, tuple(value.shape))
    return Leaf(key, value)
