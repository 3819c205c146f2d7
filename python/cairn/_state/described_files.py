"""DescribedFiles: files of a rank as the engine takes them: bytes, and the tensors whose bytes belong to the files."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from cairn import _engine
from cairn._state.storage_pickle import StoragePickle
from cairn._state.tensors import TensorSource
from cairn.errors import InvalidArgument

_SAFETENSORS_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
if hasattr(torch, "float8_e8m0fnu"):  # torch 2.7
    _SAFETENSORS_NAMES[torch.float8_e8m0fnu] = "F8_E8M0"
_HEADER_ALIGNMENT = 8  # of the first tensor in a file of safetensors


class SavedFile(NamedTuple):
    """A file of a save of files. Its tensors are the next `tensor_count` of the state."""

    name: str  # without a folder
    is_torch_save: bool  # a file of torch.save, whose pickle names the storage of tensor i by the key "i"
    head: bytes  # the pickle, or the bytes in front of those of the tensors
    tensor_count: int


class DescribedFiles:
    """The files of a save, and the memory of their tensors."""

    def __init__(self) -> None:
        self.native = _engine.StateDict()
        self.files: list[SavedFile] = []
        self._tensors = TensorSource(self.native, from_devices=True)

    def add_torch_save(self, name: str, value: Any) -> None:
        """Adds a file of ``torch.save``, whose storages ``torch.load`` puts into the memory of the CPU."""
        pickled = StoragePickle(name, value)
        for number, storage in enumerate(pickled.storages):
            self._add_tensor(f"{name}/data/{number}", storage)
        self.files.append(SavedFile(name, True, pickled.data, len(pickled.storages)))

    def add_bytes(self, name: str, data: bytes) -> None:
        """Adds a file of bytes."""
        self.files.append(SavedFile(name, False, data, 0))

    def add_safetensors(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Adds a file of safetensors. Raises InvalidArgument for a dtype that safetensors lacks."""
        header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
        end = 0
        # Elements of the larger size first: each tensor then begins at a multiple of its element's size.
        ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
        for key, tensor in ordered:
            if tensor.dtype not in _SAFETENSORS_NAMES:
                raise InvalidArgument(
                    f"'{key}' has a dtype that safetensors lacks", key=key, actual=str(tensor.dtype), file=name
                )
            begin, end = end, end + tensor.numel() * tensor.element_size()
            shape = list(tensor.shape)
            header[key] = {
                "dtype": _SAFETENSORS_NAMES[tensor.dtype],
                "shape": shape,
                "data_offsets": [begin, end],
            }
            self._add_tensor(f"{name}/{key}", tensor)
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _HEADER_ALIGNMENT)
        self.files.append(SavedFile(name, False, len(text).to_bytes(8, "little") + text, len(ordered)))

    def keys_of_moved(self) -> list[str]:
        """Returns the keys of tensors whose memory has since been freed or moved by ``storage.resize_()``."""
        return self._tensors.keys_of_moved()

    def _add_tensor(self, key: str, tensor: torch.Tensor) -> None:
        self._tensors.add((key,), tensor.detach())
