"""Objects of DCP's plans, rebuilt without running code from a checkpoint.

Some writers keep the plans of all ranks in the metadata, in the attribute ``all_local_plans`` (NVRx, which skips
planning at resume). The engine decodes the pickle into calls and states without running it. :func:`rebuilt` makes the
objects, of a fixed table of torch's data classes and enumerations, by setting their fields.
"""

import dataclasses
import importlib
from typing import Any

import torch

_TORCH = "torch.distributed.checkpoint"

_DATA_CLASSES = {
    (f"{_TORCH}.filesystem", "_StorageInfo"),
    (f"{_TORCH}.filesystem", "_StoragePrefix"),
    (f"{_TORCH}.metadata", "BytesStorageMetadata"),
    (f"{_TORCH}.metadata", "ChunkStorageMetadata"),
    (f"{_TORCH}.metadata", "MetadataIndex"),
    (f"{_TORCH}.metadata", "TensorStorageMetadata"),
    (f"{_TORCH}.planner", "BytesIOWriteData"),
    (f"{_TORCH}.planner", "LoadPlan"),
    (f"{_TORCH}.planner", "ReadItem"),
    (f"{_TORCH}.planner", "SavePlan"),
    (f"{_TORCH}.planner", "TensorWriteData"),
    (f"{_TORCH}.planner", "WriteItem"),
}
_ENUMERATIONS = {
    (f"{_TORCH}.metadata", "_MEM_FORMAT_ENCODING"),
    (f"{_TORCH}.planner", "LoadItemType"),
    (f"{_TORCH}.planner", "WriteItemType"),
}
# Of the state of a TensorProperties up to torch 2.14. Later versions append the strides.
_FIELDS_WITHOUT_STRIDES = 5
_LAYOUTS = {str(layout): layout for layout in (torch.strided, torch.sparse_coo, torch.sparse_csr)}


def rebuilt(module: str, name: str, _by_new: bool, arguments: Any, state: Any, items: Any) -> Any:
    """Returns the object whose pickle holds `arguments`, `state` and `items` (as for ``cairn.UnknownObject``).

    Raises LookupError if the class is not in the table, or if the pickle differs from torch's form.
    """
    key = (module, name)
    if items is None:
        if key in _DATA_CLASSES and not arguments and isinstance(state, dict):
            return _data_object(key, state)
        if key == (f"{_TORCH}.metadata", "TensorProperties") and not arguments:
            return _tensor_properties(key, state)
        if state is None:
            return _plain(key, arguments)
    raise LookupError(f"no object of a plan: {module}.{name}")


def _class(key: tuple[str, str]) -> Any:
    try:
        return getattr(importlib.import_module(key[0]), key[1])
    except (ImportError, AttributeError) as error:  # another version of torch
        raise LookupError(f"this torch has no {key[0]}.{key[1]}") from error


def _data_object(key: tuple[str, str], state: dict[Any, Any]) -> Any:
    kind = _class(key)
    if not state.keys() <= {field.name for field in dataclasses.fields(kind)}:
        raise LookupError(f"fields that {key[0]}.{key[1]} does not have")
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


def _tensor_properties(key: tuple[str, str], state: Any) -> Any:
    kind = _class(key)
    fields = len(dataclasses.fields(kind))
    if not isinstance(state, tuple) or len(state) not in (_FIELDS_WITHOUT_STRIDES, _FIELDS_WITHOUT_STRIDES + 1):
        raise LookupError("a state that TensorProperties does not have")
    strides = state[_FIELDS_WITHOUT_STRIDES:]
    if any(each is not None and not _are_strides(each) for each in strides):
        raise LookupError("strides that are not a tuple of numbers")
    made = object.__new__(kind)
    try:
        made.__setstate__(state[:fields])
    except Exception as error:
        raise LookupError("a state that TensorProperties does not have") from error
    return made


def _are_strides(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(number) is int and number >= 0 for number in value)


def _plain(key: tuple[str, str], arguments: Any) -> Any:
    if key[0] == "torch" and arguments is None:
        dtype = getattr(torch, key[1], None)
        if isinstance(dtype, torch.dtype):
            return dtype
    if isinstance(arguments, tuple) and len(arguments) == 1:
        (argument,) = arguments
        if key in _ENUMERATIONS:
            return _member(key, argument)
        if key == ("torch", "Size") and isinstance(argument, (list, tuple)):
            return _size(argument)
        if key == ("torch.serialization", "_get_layout") and argument in _LAYOUTS:
            return _LAYOUTS[argument]
    raise LookupError(f"no object of a plan: {key[0]}.{key[1]}")


def _member(key: tuple[str, str], value: Any) -> Any:
    try:
        return _class(key)(value)
    except ValueError as error:
        raise LookupError(str(error)) from error


def _size(numbers: Any) -> torch.Size:
    if any(type(number) is not int for number in numbers):
        raise LookupError("a size that is not made of numbers")
    return torch.Size(numbers)
