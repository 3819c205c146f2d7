"""A state dict as the engine takes it: flattened, tensors by their addresses, values converted; and checks of the
arguments of ``save`` and ``load``."""

import functools
import io
import os
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.stateful import Stateful

from cairn import _engine
from cairn._state.flattening import Path, Rules
from cairn._state.tensors import TensorSource
from cairn._state.values import add_value
from cairn._telemetry import dcp_records
from cairn.errors import InvalidArgument


class HeldState(Protocol):
    """The entries of a save, and the memory to which `native` points."""

    native: _engine.StateDict

    def keys_of_moved(self) -> list[str]:
        """Returns the keys of tensors whose memory has since been freed or moved by ``storage.resize_()``."""


class DescribedState:
    """The entries of a save. Keeps the memory alive to which `native` points."""

    def __init__(
        self,
        state_dict: Mapping[Any, Any],
        *,
        record_paths: bool = True,
        raw_values: bool = False,
        from_devices: bool = False,
    ) -> None:
        """Describes `state_dict`. Raises and warns as cairn.save: Unsupported, PickleWarning...

        `raw_values`: a BytesIO holds the bytes of its item. `from_devices`: the save reads the memory of CUDA devices;
        otherwise their tensors are copied here.
        """
        check_state_dict(state_dict)
        self.native = _engine.StateDict()
        self._tensors = TensorSource(self.native, from_devices=from_devices)
        rules = Rules.TORCH_2_4 if record_paths else Rules.TOP_LEVEL
        add = functools.partial(_add_raw if raw_values else add_value, self.native)
        self._tensors.add_leaves(state_dict, rules, add)

    def keys_of_moved(self) -> list[str]:
        """Returns the keys of tensors whose memory has since been freed or moved by ``storage.resize_()``."""
        return self._tensors.keys_of_moved()


def _add_raw(state: _engine.StateDict, path: Path, value: Any) -> None:
    if isinstance(value, io.BytesIO):
        state.add_serialized_value(path, value.getvalue())
    else:
        add_value(state, path, value)


def states_of(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries, with Statefuls replaced by their ``state_dict()``. Recorded in telemetry under the names of
    torch's function."""
    check_state_dict(state_dict)
    if not dcp_records.is_heard():
        return {key: _state_of(value) for key, value in state_dict.items()}
    states = {}
    with dcp_records.in_call("_stateful_to_state_dict"):
        for key, value in state_dict.items():
            with dcp_records.in_call(f"_stateful_to_state_dict.{key}"):
                states[key] = _state_of(value)
    return states


def _state_of(value: Any) -> Any:
    if type(value) in (torch.Tensor, torch.nn.Parameter, dict):
        return value
    return value.state_dict() if isinstance(value, Stateful) else value


def check_state_dict(given: object) -> None:
    """Raises InvalidArgument if `given` is no dict and has no ``items()``."""
    if isinstance(given, Mapping) or hasattr(type(given), "items"):
        return
    hint = ""
    if _is_path(given):
        hint = "; the directory is the argument checkpoint_id"
    elif callable(getattr(given, "state_dict", None)):
        hint = "; pass what its state_dict() returns, or a dict that holds it"
    raise InvalidArgument(f"state_dict must be a dict, got {type(given).__name__}{hint}")


def check_order(function: str, first: object, second: object, directory_argument: str = "checkpoint_id=") -> None:
    """Raises InvalidArgument if `first`, the state dict in a call of `function`, and `second` are swapped.

    `directory_argument` is the form of the directory in the call: a keyword, or "" for the second argument.
    """
    if _is_path(first) and isinstance(second, Mapping):
        right = f"{function}(state_dict, {directory_argument}{os.fspath(first)!r})"  # type: ignore[call-overload]
        raise InvalidArgument(f"the arguments of {function}() are swapped: call {right}")


def refuse_path(function: str, second: object) -> None:
    """Raises InvalidArgument if `second`, the storage in a call of `function`, is a directory."""
    if _is_path(second):
        right = f"{function}(state_dict, checkpoint_id={os.fspath(second)!r})"  # type: ignore[call-overload]
        raise InvalidArgument(f"{function}() takes the directory as checkpoint_id: call {right}")


def _is_path(given: object) -> bool:
    return isinstance(given, str | os.PathLike)
