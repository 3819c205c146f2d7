"""The ``torch.save`` archive of an object, made after a check of the memory of each tensor inside the object."""

import io
import pickle
from typing import Any

import torch

from cairn._state.tensor_memory import check_memory


def payload_of(key: str, value: Any) -> bytes:
    """Returns the archive of the value under `key`.

    Raises as check_memory() for a tensor inside the value, and passes on the exceptions of ``torch.save``.
    """
    stream = io.BytesIO()
    torch.save(value, stream, pickle_module=_PickleModule(key))
    return stream.getvalue()


class _PickleModule:
    """Stands for the module ``pickle`` in ``torch.save``."""

    __name__ = "pickle"

    def __init__(self, key: str) -> None:
        class Pickler(pickle.Pickler):
            def reducer_override(self, value: Any) -> Any:
                if isinstance(value, torch.Tensor):
                    check_memory(key, value)
                return NotImplemented

        self.Pickler = Pickler

    def __getattr__(self, name: str) -> Any:
        return getattr(pickle, name)
