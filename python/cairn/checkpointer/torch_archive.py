"""The file of torch's own CheckpointWriter: ``checkpoint_{rank}.pt``, one ``torch.save`` of the whole state.

The file is read by the rules of ``torch.load(weights_only=True)`` unless the caller allows pickles to run, and
memory-mapped: only the selected tensors are read. The file has no usable checksums.
"""

from collections.abc import Sequence
from pathlib import Path

from cairn._state.tensors import fill
from cairn._state.torch_file import load_torch_file
from cairn.checkpointer.reading import Reading
from cairn.checkpointer.saved_tree import Branch, tree_of_value
from cairn.checkpointer.selection import Slot
from cairn.errors import Corrupt


class TorchArchive:
    """A source for :class:`cairn.checkpointer.selection.Selection`."""

    def __init__(self, file: Path, reading: Reading) -> None:
        self._file = file
        self._reading = reading

    def tree(self) -> Branch:
        """Returns the tree of the saved state. Raises UnsafeContent, Corrupt."""
        tree = tree_of_value(load_torch_file(self._file, self._reading.allow_pickle), "")
        if not isinstance(tree, Branch) or tree.is_list:
            raise Corrupt(f"{self._file.name} holds no state dict", file=self._file.name)
        return tree

    def read_values(self, slots: Sequence[Slot]) -> None:
        """Sets the values, which tree() has already read."""
        for slot in slots:
            slot.value = slot.leaf.content

    def read_tensors(self, slots: Sequence[Slot]) -> None:
        """Fills the targets of `slots`, and makes new tensors for slots without a target."""
        for slot in slots:
            source = slot.leaf.content
            if slot.target is None:
                new = self._reading.place(source.detach().clone())
                slot.value = new.requires_grad_(source.requires_grad)
            else:
                fill(slot.target, source)
                slot.value = slot.target
