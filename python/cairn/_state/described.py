"""A state dict as the engine takes it: flattened, tensors by their addresses, values converted."""

import functools
import io
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.stateful import Stateful

from cairn import _engine
from cairn._state.flattening import Path, Rules
from cairn._state.state_argument import check_state_dict
from cairn._state.tensors import TensorSource
from cairn._state.values import add_value
from cairn._telemetry import dcp_records


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
