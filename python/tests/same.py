"""Bitwise comparison of two states."""

import struct
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def bits(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor, row-major, as bytes."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.is_quantized:
        plain = plain.int_repr()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def assert_same(actual: Any, expected: Any, where: str = "state") -> None:
    """Fails, naming the place, unless both states hold equal types, shapes and bits. A Parameter counts as a Tensor."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), f"{where}: {type(actual)} is no tensor"
        assert actual.dtype == expected.dtype, where
        assert actual.shape == expected.shape, where
        assert bits(actual) == bits(expected), f"{where}: elements differ"
        return
    if isinstance(expected, (np.ndarray, np.generic)):
        assert type(actual) is type(expected), where
        assert actual.dtype == expected.dtype, where
        assert actual.shape == expected.shape, where
        assert actual.tobytes() == expected.tobytes(), f"{where}: elements differ"
        return
    if isinstance(expected, Mapping):
        assert isinstance(actual, Mapping), f"{where}: {type(actual)} is no mapping"
        assert isinstance(actual, OrderedDict) == isinstance(expected, OrderedDict), where
        assert list(actual) == list(expected), f"{where}: keys differ"
        for key in expected:
            assert_same(actual[key], expected[key], f"{where}[{key!r}]")
        return
    assert type(actual) is type(expected), f"{where}: {type(actual)} is not {type(expected)}"
    if isinstance(expected, float):
        assert struct.pack("<d", actual) == struct.pack("<d", expected), where
    elif isinstance(expected, complex):
        assert struct.pack("<2d", actual.real, actual.imag) == struct.pack("<2d", expected.real, expected.imag), where
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_same(a, e, f"{where}[{i}]")
    else:
        assert actual == expected, where


def blank(state: Any) -> Any:
    """Returns a template of equal structure: tensors of ones, and None for all other values. Containers are copied."""
    if isinstance(state, torch.Tensor):
        size = state.element_size()
        raw = torch.ones((*state.shape, size), dtype=torch.uint8)
        return raw.view(state.dtype).reshape(state.shape)
    if isinstance(state, Mapping):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [blank(value) for value in state]
    return None
