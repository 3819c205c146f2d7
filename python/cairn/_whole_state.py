"""cairn.read: the whole state of a checkpoint, with its nesting; needs no torch.

1. The flat keys and their recorded places give a tree. A file of ``torch.save`` keeps the nesting itself, and torch's
   rules for data without code give its tree where torch is installed.
2. The caller's patterns select leaves of the tree.
3. The engine reads all selected leaves in one load, and compares the checksums.
4. The tree becomes dicts and lists.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cairn import _engine, arrays
from cairn._directory import SizeLimit, existing_place, open_to_inspect, restarting, warn_of_damage
from cairn._settings import links_followed
from cairn.checkpoint import Verify, check_verify, decoded
from cairn.errors import Error, InvalidArgument, MissingKey, UnsafeContent, Unsupported

if TYPE_CHECKING:
    from cairn._state.saved_tree import Branch

_QUANTISED = frozenset({"quint8", "qint8", "qint32", "quint4x2", "quint2x4"})


def read(
    directory: str | os.PathLike[str],
    keys: Iterable[str] = (),
    *,
    tensors: arrays.Form | None = None,
    verify: Verify = "needed",
    follow_links: bool | None = None,
) -> dict[str, Any]:
    """Returns the state in a checkpoint, nested as the state was saved, without a state dict to fill.

    `directory` is a checkpoint of any format that :func:`cairn.open` recognises: of Cairn or DCP, a safetensors model,
    a file of ``torch.save``, a directory of Meta's ``torch_checkpointing``. `keys` are patterns (``*``, ``?``,
    ``[a-z]``) of the flat keys to read, each also with all keys below it; all keys if empty. A list is read whole, or
    not at all.

    `tensors` is as in :func:`cairn.open`; None: torch tensors on the CPU if torch is installed, else NumPy arrays.
    Values are those that :func:`cairn.open` gives: nothing in the checkpoint is run, and objects of unknown classes
    come back as :class:`cairn.UnknownObject`. `verify` and `follow_links` are as in ``cairn.load``.

    DCP saves the keys of dicts as text, and no empty dicts. The numbers of the parameters in the state of an optimizer
    become integers again, as ``Optimizer.load_state_dict`` needs them. Of a file of ``torch.save``, read into torch
    tensors, all keys keep their types, unless the file has an object of an unknown class.

    Raises NotFound, Corrupt and Unsupported as :func:`cairn.open` and its reads, and MissingKey if a pattern matches no
    key.
    """
    place = os.fspath(existing_place(directory))
    check_verify(verify)
    if isinstance(keys, str):
        raise InvalidArgument("keys must be a list of patterns, not a string", actual=repr(keys))
    patterns = list(keys)
    form = arrays.default_form() if tensors is None else arrays.check_form(tensors)

    def attempt() -> dict[str, Any]:
        if form == "torch" and _is_torch_file(place):
            try:
                return _read_torch_file(Path(place), patterns, verify)
            except (UnsafeContent, Unsupported):
                pass  # the engine reads the values that torch's rules refuse
        return _Source(place, form, {"verify": verify, "follow_links": links_followed(follow_links)}).read(patterns)

    return restarting(attempt)


def _is_torch_file(place: str) -> bool:
    return Path(place).is_file() and not place.endswith(".safetensors")


def _read_torch_file(file: Path, patterns: list[str], verify: Verify) -> dict[str, Any]:
    from cairn._torch_files.torch_archive import TorchArchive
    from cairn.checkpointer.selection import Selection

    archive = TorchArchive(file, allow_pickle=False, verify=verify)
    selection = Selection(None, _selected(archive.tree(), patterns, str(file)))
    archive.read_values(selection.values)
    archive.read_tensors(selection.tensors)
    state: dict[str, Any] = selection.settle()
    return state


class _Source:
    """An open checkpoint, whose tensors are read in the form `form`. `options`: of the engine's load."""

    def __init__(self, place: str, form: arrays.Form, options: Mapping[str, Any]) -> None:
        self._place = place
        self._form = form
        self._options = options
        self._checkpoint = open_to_inspect(place)
        self._catalog = _engine.catalog_of(self._checkpoint)
        self._limit = SizeLimit(self._checkpoint, place)
        warn_of_damage(self._checkpoint)

    def read(self, patterns: list[str]) -> dict[str, Any]:
        tree = _selected(self._tree(), patterns, self._place)
        leaves = list(tree.leaves())
        state = _engine.StateDict()
        take: list[Callable[[], Any]] = []
        for index, leaf in enumerate(leaves):
            take.append(self._add(state, index, leaf.key))
        self._checkpoint.load(state, **self._options)
        for leaf, value in zip(leaves, take, strict=True):
            leaf.content = value()
        return tree.as_containers()

    def _tree(self) -> "Branch":
        from cairn._state import saved_tree  # imports dataclasses, which `import cairn` does not need

        paths = self._catalog.paths()
        shape = saved_tree.NestedShape({}, [])
        leaves = []
        for key in self._catalog.keys():  # noqa: SIM118 - not a mapping
            if key == saved_tree.SHAPE:
                payload = self._checkpoint.read_payload(key, **self._options)
                shape = saved_tree.shape_in(decoded(key, payload, self._form))
            else:
                leaves.append((paths.get(key, (key,)), saved_tree.Leaf(key, None)))
        tree = saved_tree.tree_of_paths(leaves, shape)
        saved_tree.number_parameters(tree)
        return tree

    def _add(self, state: _engine.StateDict, index: int, key: str) -> Callable[[], Any]:
        """Adds a key to the engine's state. Returns the function that gives the key's value after the load."""
        tensor = self._checkpoint.tensor(key)  # with the dtype in the files
        if tensor is None:
            state.add_serialized_value((key,), b"")
            return lambda: decoded(key, state.payload(index), self._form)
        code, shape, requires_grad, chunks, _ = tensor
        name = _engine.DTYPE_NAMES[code]
        if name in _QUANTISED and self._form == "torch":
            state.add_serialized_tensor((key,), b"", code, shape, requires_grad)
            return lambda: _opaque_tensor(key, shape, state.payload(index))
        self._limit.add(key, shape, _engine.DTYPE_ITEM_BYTES[code], sum(length for *_, length in chunks))
        try:
            array, address = arrays.empty(name, shape, self._form)
        except Error as error:
            raise error.under(key) from None
        strides = [math.prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
        state.add_tensor((key,), address, code, shape, strides, False)
        return lambda: array


def _opaque_tensor(key: str, shape: tuple[int, ...], payload: bytes) -> Any:
    """Returns a tensor that only torch can read."""
    import torch

    from cairn._state.tensors import tensor_in_payload

    return tensor_in_payload(key, torch.empty(shape, device="meta"), payload, allow_pickle=False)


def _selected(tree: "Branch", patterns: list[str], place: str) -> "Branch":
    """Returns the part of the tree that the patterns select. Raises MissingKey for a pattern without a key."""
    from cairn._state.saved_tree import selected

    if not patterns:
        return tree
    unused = set(patterns)

    def selects(key: str) -> bool:
        matching = [pattern for pattern in patterns if _engine.matches_key(pattern, key)]
        unused.difference_update(matching)
        return bool(matching)

    part = selected(tree, selects)
    if unused:
        pattern = next(pattern for pattern in patterns if pattern in unused)
        raise MissingKey(f"no key of the checkpoint in '{place}' matches '{pattern}'", key=pattern)
    return part
