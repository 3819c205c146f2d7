"""The pickle of ``torch.save`` without the bytes of the storages: the engine writes these into the file.

The pickle refers to a storage by a key, "0", "1", ..., in the order of the first use. ``torch.load`` finds the bytes in
the record ``data/<key>``. Everything that ``torch.save`` stores, a pickle of this module stores: tensors of any class,
tensors that share a storage, and objects of any class.
"""

import io
import pickle
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.serialization import normalize_storage_type

from cairn._state.tensor_memory import check_memory

_PROTOCOL = 2  # of torch.save
_LOCATION = "cpu"  # of every storage


class StoragePickle:
    """The pickle of one object.

    `data` is the pickle. `storages` are the bytes of its storages, as tensors of dtype uint8 that keep the storages
    alive. ``torch.load`` puts storages of devices into the memory of the CPU, as for a staged state. Raises the errors
    of the pickled objects, as ``torch.save`` does. Also raises InvalidArgument for a tensor whose storage was freed,
    and Unsupported for a FakeTensor, both with `name`: ``torch.save`` stores these, and ``torch.load`` fails.
    """

    def __init__(self, name: str, value: Any) -> None:
        self.storages: list[torch.Tensor] = []
        buffer = io.BytesIO()
        _StoragePickler(buffer, name, self.storages).dump(value)
        self.data = buffer.getvalue()


class _StoragePickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, name: str, storages: list[torch.Tensor]) -> None:
        super().__init__(buffer, protocol=_PROTOCOL)
        self._name = name
        self._storages = storages
        # By the storage's address as an object of C++, and its class: torch.load gives all tensors of a key the dtype
        # of the first. A storage under two dtypes, which torch.save refuses, is stored once for each.
        self._keys: dict[tuple[int, Any], str] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Checks tensors, and leaves their form to themselves."""
        if isinstance(obj, torch.Tensor) and not is_lazy(obj):
            check_memory(self._name, obj)
        return NotImplemented

    def persistent_id(self, obj: Any) -> Any:
        """Returns the reference to a storage: torch's tuple of kind, class, key, location and number of elements."""
        if isinstance(obj, torch.storage.TypedStorage):
            storage = obj._untyped_storage
            storage_type = getattr(torch, obj._pickle_storage_type())  # type: ignore[no-untyped-call]
            count = obj._size()  # type: ignore[no-untyped-call]
        elif isinstance(obj, torch.UntypedStorage):
            storage = obj
            storage_type = normalize_storage_type(type(obj))  # type: ignore[no-untyped-call]
            count = storage.nbytes()
        else:
            return None
        place = (storage._cdata, storage_type)
        key = self._keys.get(place)
        if key is None:
            key = self._keys[place] = str(len(self._storages))
            self._storages.append(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
        return ("storage", storage_type, key, _LOCATION, count)
