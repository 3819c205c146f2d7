"""Checks that a tensor has elements in memory: no lazy parameter, no fake tensor, no freed storage.

The engine reads and fills tensors by their addresses, and ``torch.save`` copies the storage as it is: without the check
a freed storage ends the process or is saved as an empty one.
"""

import functools
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from cairn import _engine
from cairn._state.flattening import flatten
from cairn.errors import InvalidArgument, Unsupported


def has_dispatch(tensor: torch.Tensor) -> bool:
    """Returns whether a subclass computes the tensor's operations: the elements are those of other tensors."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


@functools.cache
def _engine_check() -> _engine.PlainTensors:
    return _engine.PlainTensors({}, ())


def check_memory(key: str, tensor: torch.Tensor) -> None:
    """Raises InvalidArgument for a parameter that waits for its shape, and for a tensor whose storage was freed or
    shrunk by ``storage.resize_()``; Unsupported for a fake tensor.

    Of a wrapper subclass the wrapped tensors are checked, as far as ``__tensor_flatten__`` names them.
    """
    tensors = [tensor]
    while tensors:
        each = tensors.pop()
        if is_lazy(each):
            raise InvalidArgument(
                f"'{key}' is a parameter or buffer of a lazy module (LazyLinear) that has no shape yet; run the module "
                "once before, or leave the key out",
                key=key,
            )
        if _is_fake(each):
            raise Unsupported(
                f"'{key}' is a FakeTensor, which holds no elements; make the tensor outside of FakeTensorMode", key=key
            )
        if has_dispatch(each):
            tensors += _wrapped(each)
        elif not each.is_meta and each.layout is torch.strided and not each.is_nested:
            with torch._C.DisableTorchFunctionSubclass():
                _engine_check().check_memory(key, each)


def check_memory_of_all(state: Any) -> None:
    """Raises as check_memory() for the tensors of a nested state, with the key of the first; other objects than a
    mapping are not looked at."""
    if not isinstance(state, Mapping):
        return
    for leaf in flatten(state):
        if isinstance(leaf.value, torch.Tensor):
            check_memory(leaf.fqn, leaf.value)


def _wrapped(tensor: Any) -> list[torch.Tensor]:
    try:
        names, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in names]
    except Exception:  # the method is the caller's; a save does not need it
        return []
    return [part for part in parts if isinstance(part, torch.Tensor) and part is not tensor]


def _is_fake(tensor: torch.Tensor) -> bool:
    module: Any = sys.modules.get("torch._subclasses.fake_tensor")  # without the module there are no fake tensors
    return module is not None and isinstance(tensor, module.FakeTensor)
