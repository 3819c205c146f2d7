"""Tensors inside a value, built from the content of the pickle, with their strides, storages and devices.

torch's ``weights_only`` rules read tensors in lists, tuples and dicts, but not beside objects of other classes. For
such values the engine's decoder describes the calls of ``torch._utils`` and the storages; the functions of this module
check the description and make the tensors. No function that the file names is called. Not built: quantised and sparse
tensors, tensors with attributes or hooks, conjugate and negative views.
"""

import io
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from cairn import _known_objects
from cairn._known_objects import Description, called_with, expect, of_types

_UTILS = "torch._utils"
_DIMENSIONS_MAX = 64
_STORAGE_DTYPES: dict[str, torch.dtype] = {
    name: dtype
    for dtype, name in torch.storage._dtype_to_storage_type_map().items()
    if not name.startswith("Q")  # quantised
}


class _StorageClass(NamedTuple):
    dtype: torch.dtype | None  # None: bytes; the tensor names the dtype


class _Storage(NamedTuple):
    bytes: torch.UntypedStorage
    dtype: torch.dtype | None


class TensorsOfArchive:
    """Makes the tensors of an archive of ``torch.save``.

    `restore` takes a storage in CPU memory and the location in the file, and returns the storage on the location's
    device, as ``torch.serialization.default_restore_location`` does.
    """

    def __init__(self, payload: bytes, restore: Callable[[torch.UntypedStorage, str], torch.UntypedStorage]) -> None:
        self._archive = zipfile.ZipFile(io.BytesIO(payload))
        self._prefix = next(name for name in self._archive.namelist() if name.endswith("/data.pkl"))[: -len("data.pkl")]
        self._restore = restore
        self._storages: dict[str, tuple[_Storage, str]] = {}  # by key, with their locations

    def make(self, module: str, name: str, by_new: bool, arguments: Any, state: Any, items: Any) -> Any:
        """As _known_objects.make(), for tensors and their storages too."""
        if arguments is None and (storage_class := _storage_class(module, name)) is not None:
            return storage_class
        builder = self._builder_of(module, name)
        if builder is None or type(arguments) is not tuple:
            return _known_objects.make(module, name, by_new, arguments, state, items)
        return _known_objects.build(builder, Description(by_new, arguments, state, items))

    def _builder_of(self, module: str, name: str) -> _known_objects.Builder | None:
        if (module, name) == ("torch.storage", "_load_storage"):
            return self._load
        return _BUILDERS.get(name) if module == _UTILS else None

    def _load(self, description: Description) -> _Storage:
        """The storage of a persistent id: ("storage", class, key, location, count of elements)."""
        (identity,) = called_with(description, tuple)
        kind, storage_class, key, location, count = of_types(identity, str, _StorageClass, str, str, int)
        expect(kind == "storage" and count >= 0)
        element_bytes = 1 if storage_class.dtype is None else storage_class.dtype.itemsize
        if key not in self._storages:
            self._storages[key] = (_Storage(self._read(key, location), storage_class.dtype), location)
        storage, known_location = self._storages[key]
        expect(storage.bytes.nbytes() == count * element_bytes and location == known_location)
        return _Storage(storage.bytes, storage_class.dtype)

    def _read(self, key: str, location: str) -> torch.UntypedStorage:
        record = self._archive.getinfo(f"{self._prefix}data/{key}")
        expect(record.compress_type == zipfile.ZIP_STORED and record.file_size == record.compress_size)
        try:
            data = bytearray(self._archive.read(record))  # checks the CRC
        except zipfile.BadZipFile as error:
            raise _known_objects.Unfit from error
        storage = torch.frombuffer(data, dtype=torch.uint8).untyped_storage() if data else _empty_storage()
        return self._restore(storage, location)


def _empty_storage() -> torch.UntypedStorage:
    return torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()


def _storage_class(module: str, name: str) -> _StorageClass | None:
    if (module, name) == ("torch.storage", "UntypedStorage"):
        return _StorageClass(None)
    dtype = _STORAGE_DTYPES.get(name) if module == "torch" else None
    return None if dtype is None else _StorageClass(dtype)


def _tensor(description: Description) -> torch.Tensor:
    """``_rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks)``"""
    storage, offset, sizes, strides, requires_grad, hooks = called_with(
        description, _Storage, int, tuple, tuple, bool, OrderedDict
    )
    expect(storage.dtype is not None and not hooks)
    return _window(storage.bytes, storage.dtype, (offset, sizes, strides), requires_grad)


def _tensor_of_bytes(description: Description) -> torch.Tensor:
    """``_rebuild_tensor_v3(storage, offset, sizes, strides, requires_grad, hooks, dtype)``"""
    storage, offset, sizes, strides, requires_grad, hooks, dtype = called_with(
        description, _Storage, int, tuple, tuple, bool, OrderedDict, torch.dtype
    )
    expect(storage.dtype is None and not hooks)
    return _window(storage.bytes, dtype, (offset, sizes, strides), requires_grad)


def _parameter(description: Description) -> torch.nn.Parameter:
    """``_rebuild_parameter(tensor, requires_grad, hooks)``"""
    tensor, requires_grad, hooks = called_with(description, torch.Tensor, bool, OrderedDict)
    expect(not hooks)
    try:
        return torch.nn.Parameter(tensor, requires_grad)
    except RuntimeError as error:  # integers have no gradient
        raise _known_objects.Unfit from error


def _window(
    storage: torch.UntypedStorage, dtype: torch.dtype, window: tuple[int, Any, Any], requires_grad: bool
) -> torch.Tensor:
    """Returns a tensor in a storage: offset, sizes and strides are in elements, and the window must lie within the
    storage."""
    offset, sizes, strides = window
    expect(len(sizes) == len(strides) <= _DIMENSIONS_MAX and offset >= 0)
    expect(all(type(number) is int and number >= 0 for number in (*sizes, *strides)))
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    end = offset if 0 in sizes else last + 1
    expect(end * dtype.itemsize <= storage.nbytes())
    try:
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        tensor.set_(storage, offset, sizes, strides)
        return tensor.requires_grad_(requires_grad)
    except RuntimeError as error:
        raise _known_objects.Unfit from error


_BUILDERS: dict[str, _known_objects.Builder] = {
    "_rebuild_parameter": _parameter,
    "_rebuild_tensor_v2": _tensor,
    "_rebuild_tensor_v3": _tensor_of_bytes,
}
