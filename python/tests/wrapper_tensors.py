"""Tensor subclasses without elements of their own, as trainers of low precision have them."""

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

_aten = torch.ops.aten


class Weight(torch.Tensor):
    """As the float8 weights of torchao: a tensor of high precision, with a note about its use."""

    inner: torch.Tensor
    note: str

    @staticmethod
    def __new__(cls, inner: torch.Tensor, note: str = "") -> "Weight":
        made: Weight = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, requires_grad=inner.requires_grad
        )
        return made

    def __init__(self, inner: torch.Tensor, note: str = "") -> None:
        self.inner = inner
        self.note = note

    _KEEPS_CLASS = frozenset(
        {
            _aten.detach.default,
            _aten.slice.Tensor,
            _aten.view.default,
            _aten.clone.default,
            _aten.copy_.default,
            _aten._to_copy.default,
        }
    )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note = next(value.note for value in args if isinstance(value, Weight))
        inner_args, inner_kwargs = tree_map_only(Weight, lambda value: value.inner, (args, kwargs or {}))
        result = func(*inner_args, **inner_kwargs)
        if func not in cls._KEEPS_CLASS or not isinstance(args[0], Weight):
            return result
        return args[0] if func is _aten.copy_.default else cls(result, note)

    def __repr__(self, **_: Any) -> str:
        return f"Weight({self.inner})"


class UnregisteredWeight(Weight):
    """A class that ``torch.load(weights_only=True)`` refuses."""


class Codes(torch.Tensor):
    """As the 8-bit optimizer states of torchao: each row is an 8-bit code for each element, and a scale."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> "Codes":
        made: Codes = torch.Tensor._make_wrapper_subclass(cls, codes.size(), dtype=torch.float32)
        return made

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes = codes
        self.scale = scale

    @classmethod
    def of(cls, values: torch.Tensor) -> "Codes":
        """Returns the codes of `values`."""
        made = cls(torch.zeros(values.shape, dtype=torch.int8), torch.zeros(len(values), 1))
        return made.copy_(values)

    def decoded(self) -> torch.Tensor:
        return self.codes * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0]
        if func is _aten.copy_.default:
            return cls._copy(first, args[1])
        if func is _aten.slice.Tensor and args[1] == 0:
            begin, end = args[2:4]
            return cls(first.codes[begin:end], first.scale[begin:end])
        if func in (_aten.detach.default, _aten.view.default, _aten._to_copy.default):
            return cls(first.codes.detach(), first.scale.detach())
        if func is _aten.is_pinned.default:  # asked by stock's planner
            return False
        if func is _aten.clone.default:
            return cls(first.codes.clone(), first.scale.clone())
        raise NotImplementedError(f"{func} of Codes")

    @staticmethod
    def _copy(target: Any, source: Any) -> Any:
        if isinstance(target, Codes) and isinstance(source, Codes):
            target.codes.copy_(source.codes)
            target.scale.copy_(source.scale)
        elif isinstance(target, Codes):
            target.scale.copy_(source.abs().amax(1, keepdim=True) / 127)
            target.codes.copy_((source / target.scale).round())
        else:
            target.copy_(source.decoded())
        return target

    def __repr__(self, **_: Any) -> str:
        return f"Codes({self.codes}, {self.scale})"


torch.serialization.add_safe_globals([Weight, Codes])


def content_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that hold a tensor's elements."""
    if isinstance(tensor, Weight):
        return [tensor.inner]
    return [tensor.codes, tensor.scale] if isinstance(tensor, Codes) else [tensor]
