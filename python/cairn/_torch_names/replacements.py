"""The objects of ``torch.distributed.checkpoint`` that Cairn replaces: Cairn's object and torch's for each name.

`OURS` is the table. :mod:`cairn._torch_names.modules` shows Cairn's objects under the names of torch's modules, and
``cairn.install`` puts the objects into torch's modules.
"""

import importlib
import sys
from types import ModuleType
from typing import Any, TypeVar

from cairn._process import ProcessPart, part

TORCH = "torch.distributed.checkpoint"

# Key: the module of `TORCH` that defines the object, and the object's name. Value: the module with Cairn's object.
OURS = {
    ("filesystem", "FileSystemReader"): "cairn.filesystem",
    ("filesystem", "FileSystemWriter"): "cairn.filesystem",
    ("format_utils", "BroadcastingTorchSaveReader"): "cairn._torch_files.file_conversion",
    ("format_utils", "dcp_to_torch_save"): "cairn._torch_files.file_conversion",
    ("format_utils", "torch_save_to_dcp"): "cairn._torch_files.file_conversion",
    ("_consolidate_hf_safetensors", "consolidate_safetensors_files"): "cairn._calls.consolidation",
    ("_consolidate_hf_safetensors", "consolidate_safetensors_files_on_every_rank"): "cairn._calls.consolidation",
    ("hf_storage", "HuggingFaceStorageReader"): "cairn.hf_storage",
    ("hf_storage", "HuggingFaceStorageWriter"): "cairn.hf_storage",
    ("quantized_hf_storage", "QuantizedHuggingFaceStorageReader"): "cairn.hf_storage",
    ("state_dict_loader", "_load_state_dict_from_keys"): "cairn._calls.torch_driver",
    ("state_dict_loader", "load"): "cairn._calls.load",
    ("state_dict_loader", "_load_state_dict"): "cairn._calls.load",
    ("state_dict_loader", "load_state_dict"): "cairn._calls.load",
    ("staging", "BlockingAsyncStager"): "cairn.staging",
    ("staging", "DefaultStager"): "cairn.staging",
    ("state_dict_saver", "async_save"): "cairn._calls.async_save",
    ("state_dict_saver", "save"): "cairn._calls.save",
    ("state_dict_saver", "_save_state_dict"): "cairn._calls.save",
    ("state_dict_saver", "save_state_dict"): "cairn._calls.save",
}

_MISSING = object()
_Class = TypeVar("_Class", bound=type)


class _Originals(ProcessPart):
    """`objects`: the objects of torch that `OURS` replaces, by key, from before the installation."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Any] = {}

    def in_child(self) -> "_Originals":
        """A child inherits torch's modules, which may hold Cairn's objects."""
        return self


def originals() -> dict[tuple[str, str], Any]:
    """Returns the objects of torch that `OURS` replaces, installed or not.

    Objects that the installed version of torch lacks are missing.
    """
    known = part(_Originals).objects
    for module, name in OURS.keys() - known.keys():
        value = getattr(imported(f"{TORCH}.{module}"), name, _MISSING)
        if value is not _MISSING:
            # install() calls this function before replacing. If another thread calls later and gets Cairn's object, the
            # first answer stays.
            known.setdefault((module, name), value)
    return known


def original(module: str, name: str) -> Any:
    """Returns torch's own object: ``original("state_dict_saver", "save")``.

    At run time Cairn must use this function, because the name in torch's module may hold Cairn's object.
    """
    value = originals().get((module, name), _MISSING)
    return getattr(importlib.import_module(f"{TORCH}.{module}"), name) if value is _MISSING else value


def imported(module: str) -> ModuleType | None:
    """Returns a module of torch; None if the installed version lacks the module."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None


def is_called_by_torchs(module: str) -> bool:
    """Returns whether the caller's caller is a function of torch's `module`.

    Torch's own ``save`` calls ``_save_state_dict`` by name. A program that holds torch's ``save`` must get torch's
    behaviour.
    """
    return bool(sys._getframe(2).f_globals.get("__name__") == f"{TORCH}.{module}")


def own(key: tuple[str, str]) -> Any:
    """Returns Cairn's object for a key of `OURS`."""
    return getattr(importlib.import_module(OURS[key]), key[1])


def stands_for_base(ours: _Class) -> _Class:
    """Decorates a class that replaces its first base, a class of torch.

    ``isinstance`` and ``issubclass`` with the decorated class accept all instances and subclasses of the base. Code
    that finds the decorated class under torch's name gets the answers of torch's class, also about older instances and
    about subclasses of the base.
    """
    base = ours.__mro__[1]

    def accepts(asked: type, candidate: type) -> Any:
        return base in candidate.__mro__ if asked is ours else NotImplemented

    ours.__subclasshook__ = classmethod(accepts)  # type: ignore[method-assign, assignment]
    return ours
