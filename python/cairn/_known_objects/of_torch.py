"""torch's own small values, and enums and dataclasses of torch that hold settings.

Tensors are built elsewhere: by torch with the rules of ``weights_only=True``, or by
:mod:`cairn._known_objects.tensors`.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.torch_version import TorchVersion

from cairn import _engine
from cairn._known_objects import Builder, Description, Table, attributes, called_with, expect, of_types

_NONE = type(None)


def _named(prefix: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the members of torch that the installed version has, by prefixed name."""
    return {prefix + name: getattr(torch, name) for name in names if hasattr(torch, name)}


_DTYPES = _named("", (*_engine.DTYPE_NAMES, "quint4x2", "quint2x4"))
_QSCHEMES = _named(
    "",
    (
        "per_channel_affine",
        "per_channel_affine_float_qparams",
        "per_channel_symmetric",
        "per_tensor_affine",
        "per_tensor_symmetric",
    ),
)
_LAYOUTS = _named(
    "torch.", ("_mkldnn", "jagged", "sparse_bsc", "sparse_bsr", "sparse_coo", "sparse_csc", "sparse_csr", "strided")
)
# Protocol 4 writes a name under the module of torch that Python found first; protocol 2 cannot write memory formats.
_MEMORY_FORMATS = _named("torch.", ("channels_last", "channels_last_3d", "contiguous_format", "preserve_format"))
_MEMORY_FORMAT_MODULES = ("torch", "torch._utils", "torch.serialization")


def _size(description: Description) -> torch.Size:
    (sizes,) = called_with(description, tuple)
    expect(all(type(size) is int for size in sizes))
    return torch.Size(sizes)


def _device(description: Description) -> torch.device:
    kinds = (str, int)[: len(description.arguments)]
    try:
        return torch.device(*called_with(description, *kinds))
    except RuntimeError as error:
        raise ValueError from error


def _layout(description: Description) -> torch.layout:
    (name,) = called_with(description, str)
    layout: torch.layout = _LAYOUTS[name]
    return layout


def _version(description: Description) -> TorchVersion:
    expect(description.by_new and not description.state and description.items is None)
    (text,) = of_types(description.arguments, str)
    return TorchVersion(text)


def _generator(description: Description) -> torch.Generator:
    """``Generator(device)`` with the state seed, offset (None on the CPU), state of the algorithm."""
    expect(not description.by_new and description.items is None)
    (device,) = of_types(description.arguments, torch.device)
    seed, offset, state = of_types(description.state, int, (int, _NONE), torch.Tensor)
    try:
        made = torch.Generator(device)
        made.manual_seed(seed)
        if offset is not None:
            made.set_offset(offset)
        return made.set_state(state)
    except RuntimeError as error:  # the device is missing, or the state does not fit the device's algorithm
        raise ValueError from error


def _return_type_builder(kind: Any) -> Builder:
    """Returns a builder for the results of functions like ``torch.max``: torch's own named tuples."""

    def build(description: Description) -> Any:
        values, further = called_with(description, tuple, dict)
        expect(not further and len(values) == kind.n_fields)
        return kind(values)

    return build


_RETURN_TYPES = {name: kind for name, kind in vars(torch.return_types).items() if hasattr(kind, "n_fields")}


# --- Enums, dataclasses and placements that hold only settings.

_FSDP = "torch.distributed.fsdp"
_FSDP_1 = "torch.distributed.fsdp.api"
_PLACEMENTS = "torch.distributed.tensor.placement_types"
_STATE_DICT = "torch.distributed.checkpoint.state_dict"

_ENUMS = (
    (_FSDP_1, "BackwardPrefetch"),
    (_FSDP_1, "ShardingStrategy"),
    (_FSDP_1, "StateDictType"),
)

_BOOL = (bool,)
_DTYPE = (torch.dtype, _NONE)
_Fields = Mapping[str, tuple[type, ...]]
_OFFLOAD: _Fields = {"offload_to_cpu": _BOOL}
_OFFLOAD_TO_RANK_0: _Fields = {**_OFFLOAD, "rank0_only": _BOOL}
_OFFLOAD_SHARDS: _Fields = {**_OFFLOAD, "_use_dtensor": _BOOL}

# By module and name: the types that each field may have.
_DATACLASSES: Mapping[tuple[str, str], _Fields] = {
    (_FSDP, "CPUOffloadPolicy"): {"pin_memory": _BOOL},
    (_FSDP, "MixedPrecisionPolicy"): {
        "param_dtype": _DTYPE,
        "reduce_dtype": _DTYPE,
        "output_dtype": _DTYPE,
        "cast_forward_inputs": _BOOL,
        "param_dtype_override_fn": (_NONE,),  # since torch 2.15
    },
    (_FSDP, "OffloadPolicy"): {},
    (_FSDP_1, "CPUOffload"): {"offload_params": _BOOL},
    (_FSDP_1, "FullOptimStateDictConfig"): _OFFLOAD_TO_RANK_0,
    (_FSDP_1, "FullStateDictConfig"): _OFFLOAD_TO_RANK_0,
    (_FSDP_1, "LocalOptimStateDictConfig"): _OFFLOAD,
    (_FSDP_1, "LocalStateDictConfig"): _OFFLOAD,
    (_FSDP_1, "MixedPrecision"): {
        "param_dtype": _DTYPE,
        "reduce_dtype": _DTYPE,
        "buffer_dtype": _DTYPE,
        "keep_low_precision_grads": _BOOL,
        "cast_forward_inputs": _BOOL,
        "cast_root_forward_inputs": _BOOL,
        "_module_classes_to_ignore": (tuple, list),
    },
    (_FSDP_1, "ShardedOptimStateDictConfig"): _OFFLOAD_SHARDS,
    (_FSDP_1, "ShardedStateDictConfig"): _OFFLOAD_SHARDS,
    (_STATE_DICT, "StateDictOptions"): {
        "full_state_dict": _BOOL,
        "cpu_offload": _BOOL,
        "ignore_frozen_params": _BOOL,
        "keep_submodule_prefixes": _BOOL,
        "strict": _BOOL,
        "broadcast_from_rank0": _BOOL,
        "flatten_optimizer_state_dict": _BOOL,
        "dsd_fqn_modifiers": (str,),
    },
    (_PLACEMENTS, "Partial"): {"reduce_op": (str,)},
    (_PLACEMENTS, "Replicate"): {},
    (_PLACEMENTS, "Shard"): {"dim": (int,)},
    (_PLACEMENTS, "_StridedShard"): {"dim": (int,), "split_factor": (int,)},
}


def _class_of(key: tuple[str, str]) -> Any:
    """Returns a class of the tables above, whose keys are the only arguments."""
    module, name = key
    return getattr(importlib.import_module(module), name)


def _enum_builder(key: tuple[str, str]) -> Builder:
    def build(description: Description) -> Any:
        (value,) = called_with(description, int)
        return {member.value: member for member in _class_of(key)}[value]

    return build


def _dataclass_builder(key: tuple[str, str], fields: _Fields) -> Builder:
    def build(description: Description) -> Any:
        expect(description.by_new and description.arguments == () and description.items is None)
        state = attributes({} if description.state is None else description.state)
        for name, value in state.items():
            expect(type(value) in fields.get(name, ()))
            expect(not isinstance(value, (tuple, list)) or all(kind is _BatchNorm for kind in value))
        kind = _class_of(key)
        if dataclasses.is_dataclass(kind):  # a field of a later torch is left out if it is not set
            known = {field.name for field in dataclasses.fields(kind)}
            state = {name: value for name, value in state.items() if name in known or value is not None}
        return kind(**state)  # fields missing in the file get their defaults, as in unpickling

    return build


TABLE = Table(
    constants={
        **{key: _class_of(key) for key in _ENUMS},
        **{("torch", name): dtype for name, dtype in (_DTYPES | _QSCHEMES).items()},
        **{(module, name): it for module in _MEMORY_FORMAT_MODULES for name, it in _MEMORY_FORMATS.items()},
        ("torch.nn.modules.batchnorm", "_BatchNorm"): _BatchNorm,
    },
    builders={
        ("torch", "Size"): _size,
        ("torch", "device"): _device,
        ("torch._C", "Generator"): _generator,
        **{("torch.return_types", name): _return_type_builder(kind) for name, kind in _RETURN_TYPES.items()},
        ("torch.serialization", "_get_layout"): _layout,
        ("torch.torch_version", "TorchVersion"): _version,
        **{key: _enum_builder(key) for key in _ENUMS},
        **{key: _dataclass_builder(key, fields) for key, fields in _DATACLASSES.items()},
    },
)
