"""Kinds of files that other programs write with torch.save, and files that look like checkpoints and are none.

Each kind is written by the function that writes the kind in practice. docs/guide/foreign-files.md has a row for each.
"""

import collections
import dataclasses
import datetime
import enum
import json
import pathlib
import pickle
import random
import struct
import tarfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import same
import torch


class Subclass(torch.Tensor):
    pass


class Stage(enum.Enum):
    FIT = 1


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


@dataclasses.dataclass
class Settings:
    depth: int
    scale: torch.Tensor


def values(sign: int = 1) -> torch.Tensor:
    return sign * torch.arange(1.0, 13.0).reshape(3, 4)


def module(sign: int) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(0.5 * sign)
    return made


def optimizer(sign: int) -> dict[str, Any]:
    made = module(sign)
    adam = torch.optim.AdamW(made.parameters())
    for parameter in made.parameters():
        parameter.grad = torch.full_like(parameter, float(sign))
    adam.step()
    return adam.state_dict()


def trainer(sign: int) -> dict[str, Any]:
    made = module(sign)
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.AdamW(made.parameters()), 10)
    return {
        "model": made.state_dict(),
        "optimizer": optimizer(sign),
        "schedule": schedule.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "args": {"name": "run", "layers": [1, 2], "nothing": None, "lr": 1e-3},
    }


def random_states(sign: int) -> dict[str, Any]:
    return {
        "torch": torch.Generator().manual_seed(5 + sign).get_state(),
        "numpy": np.random.RandomState(5 + sign).get_state(),
        "python": random.Random(5 + sign).getstate(),
    }


def quantised(sign: int) -> dict[str, torch.Tensor]:
    scales, zeros = torch.full((3,), 0.5), torch.zeros(3, dtype=torch.int64)
    return {
        "tensor": torch.quantize_per_tensor(values(sign), 0.5, 0, torch.qint8),
        "channel": torch.quantize_per_channel(values(sign), scales, zeros, 0, torch.qint8),
    }


def quantised_model(sign: int) -> dict[str, Any]:
    model = torch.ao.quantization.quantize_dynamic(module(sign), {torch.nn.Linear}, dtype=torch.qint8)
    return model.state_dict()


def dtypes(sign: int) -> dict[str, torch.Tensor]:
    floats = ("float16 bfloat16 float32 float64 complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz "
              "float8_e5m2fnuz float8_e8m0fnu")  # fmt: skip
    whole = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    made = {name: (values(1) + sign).to(getattr(torch, name)) for name in f"{whole} {floats}".split()}
    return made | {"bool": torch.tensor([True, sign > 0])}


def views(sign: int) -> dict[str, torch.Tensor]:
    base = values(sign)
    return {"whole": base, "tied": base, "row": base[1], "columns": base.t(), "gaps": base[:, ::2], "empty": base[:0]}


def complex_views(sign: int) -> dict[str, torch.Tensor]:
    numbers = [torch.complex(values(sign), values(1)) for _ in range(2)]
    return {"conjugate": numbers[0].conj(), "negative": torch._neg_view(values(sign))}


def containers(sign: int) -> dict[str, Any]:
    return {
        "counter": collections.Counter("aab"),
        "default": collections.defaultdict(list, {"x": [sign]}),
        "ordered": collections.OrderedDict(a=values(sign)),
        "tuple": (values(sign), {"x": 1}),
        "set": {1, sign},
        "empty": {},
    }


def objects(sign: int) -> dict[str, Any]:
    return {
        "stage": Stage.FIT,
        "path": pathlib.PurePosixPath("a/b"),
        "date": datetime.date(2026, 1, 2),
        "settings": Settings(3, values(sign)),
        "pair": Pair(values(sign), 1),
    }


def cycle(sign: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"depth": sign}
    settings["parent"] = {"child": settings}
    return {"w": values(sign), "settings": settings}


def nested(sign: int, layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([values(sign)[0], values(sign)[1, :2]], layout=layout)


# A state that differs by the sign in at least one bit.
STATES: dict[str, Callable[[int], Any]] = {
    "state dict of a model": lambda sign: module(sign).state_dict(),
    "state dict of an optimizer": optimizer,
    "model, optimizer, schedule, scaler, arguments": trainer,
    "every dtype": dtypes,
    "tied tensors, slices, views with gaps": views,
    "conjugate and negative views": complex_views,
    "parameters and buffers": lambda sign: {"p": torch.nn.Parameter(values(sign)), "b": torch.nn.Buffer(values(sign))},
    "Counter, defaultdict, OrderedDict, tuple, set": containers,
    "random states of torch, NumPy, Python": random_states,
    "NumPy arrays and scalars": lambda sign: {"array": values(sign).numpy(), "scalar": np.float32(sign)},
    "keys 1 and '1' of one dict": lambda sign: {1: values(sign), "1": values(2)},
    "quantised tensors": quantised,
    "dynamically quantised model": quantised_model,
    "sparse tensors": lambda sign: {"coo": values(sign).to_sparse(), "csr": values(sign).to_sparse_csr()},
    "tensor of a subclass": lambda sign: {"s": values(sign).as_subclass(Subclass)},
    "nested tensors": lambda sign: {"n": nested(sign, torch.strided), "j": nested(sign, torch.jagged)},
    "tensor on the meta device": lambda sign: {"m": torch.empty(3, sign + 2, device="meta"), "w": values(sign)},
    "module in a dict": lambda sign: {"model": module(sign), "epoch": 3},
    "storages": lambda sign: {"s": values(sign).storage()},
    "enum, path, date, dataclass, named tuple": objects,
    "dict that contains itself": cycle,
    "bare tensor, list of tensors": lambda sign: [values(sign)],
    "whole module": module,
}


# torch itself can't load these from a file without an archive.
ONLY_IN_ARCHIVES = {"every dtype", "nested tensors"}


def write_state(kind: str, sign: int, file: Path, zipped: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: prototypes and deprecations
        torch.save(STATES[kind](sign), file, _use_new_zipfile_serialization=zipped)


def read_state(file: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(file, weights_only=False)


def content(state: Any, open_dicts: frozenset[int] = frozenset()) -> Any:
    """Returns plain data that is equal for states with equal types, shapes and bits."""
    if isinstance(state, torch.Tensor):
        shape = None if state.is_nested else tuple(state.shape)
        return type(state).__name__, state.dtype, shape, state.layout, bits(state)
    if isinstance(state, (torch.TypedStorage, torch.UntypedStorage)):
        return bytes(state.untyped() if isinstance(state, torch.TypedStorage) else state)
    if isinstance(state, torch.nn.Module):
        return type(state).__name__, content(dict(state.state_dict()))
    if isinstance(state, (np.ndarray, np.generic)):
        return str(state.dtype), state.shape, state.tobytes()
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return type(state).__name__, content(vars(state))
    if isinstance(state, Mapping):
        if id(state) in open_dicts:
            return "itself"
        inside = open_dicts | {id(state)}
        return [(repr(key), content(value, inside)) for key, value in state.items()]
    if isinstance(state, (list, tuple)):
        return type(state).__name__, [content(value, open_dicts) for value in state]
    return type(state).__name__, repr(state)


def bits(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor of any layout."""
    tensor = tensor.detach()
    if tensor.is_meta:
        return None
    if tensor.is_nested:
        return [bits(part) for part in tensor.unbind()]
    if tensor.is_quantized:
        by_channel = tensor.qscheme() == torch.per_channel_affine
        scales = tensor.q_per_channel_scales() if by_channel else tensor.q_scale()
        return same.bits(tensor), str(scales)
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return same.bits(tensor.as_subclass(torch.Tensor))


class _Linear(torch.nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + 1


def _script(file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(_Linear()).save(str(file))


def _exported(file: Path) -> None:
    torch.export.save(torch.export.export(_Linear(), (torch.ones(2),)), str(file))


def _tar(file: Path) -> None:
    """The container of torch 0.1."""
    with tarfile.open(file, "w") as out:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            (file.parent / name).write_bytes(pickle.dumps({}, protocol=2))
            out.add(file.parent / name, name)


def _npz(file: Path) -> None:
    with file.open("wb") as out:
        np.savez(out, w=np.ones(3))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"

# Files that are no checkpoint that Cairn reads.
OTHERS: dict[str, Callable[[Path], Any]] = {
    "TorchScript": _script,
    "exported program": _exported,
    "container of torch 0.1 (tar)": _tar,
    "plain pickle": lambda file: file.write_bytes(pickle.dumps({"w": [1.0]})),
    "NumPy's npz": _npz,
    "NumPy's npy": lambda file: np.save(file.open("wb"), np.ones(3)),
    "GGUF": lambda file: file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + bytes(64)),
    "HDF5": lambda file: file.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64)),
    "pointer of Git LFS": lambda file: file.write_text(POINTER),
    "JSON": lambda file: file.write_text(json.dumps({"w": [1.0]})),
    "empty file": lambda file: file.write_bytes(b""),
}
