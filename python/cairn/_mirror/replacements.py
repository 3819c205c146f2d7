"""The objects of ``torch.distributed.checkpoint`` that Cairn replaces: its own object and torch's for each name.

`OURS` is the table. :mod:`cairn._mirror.modules` shows Cairn's objects under the names of torch's modules, and
``cairn.install`` puts them into torch's modules.
"""

import importlib
import sys
from types import ModuleType
from typing import Any, TypeVar

TORCH = "torch.distributed.checkpoint"

# What is Cairn's own: the module of `TORCH` that defines it and its name there; the module of Cairn that has its own.
OURS = {
    ("filesystem", "FileSystemReader"): "cairn.filesystem",
    ("filesystem", "FileSystemWriter"): "cairn.filesystem",
    ("format_utils", "BroadcastingTorchSaveReader"): "cairn._calls.file_conversion",
    ("format_utils", "dcp_to_torch_save"): "cairn._calls.file_conversion",
    ("format_utils", "torch_save_to_dcp"): "cairn._calls.file_conversion",
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
_originals: dict[tuple[str, str], Any] = {}
_Class = TypeVar("_Class", bound=type)


def originals() -> dict[tuple[str, str], Any]:
    """The objects of torch that `OURS` has others for, whether or not those are installed in their place.

    Those that this version of torch lacks are missing.
    """
    for module, name in OURS.keys() - _originals.keys():
        value = getattr(_imported(f"{TORCH}.{module}"), name, _MISSING)
        if value is not _MISSING:
            # Installing asks first. So an answer that another thread gets afterwards, Cairn's object, does not count.
            _originals.setdefault((module, name), value)
    return _originals


def original(module: str, name: str) -> Any:
    """torch's own object: ``original("state_dict_saver", "save")``.

    Cairn itself asks here when it runs, not torch, whose name may stand for Cairn's object by then.
    """
    value = originals().get((module, name), _MISSING)
    return getattr(importlib.import_module(f"{TORCH}.{module}"), name) if value is _MISSING else value


def _imported(module: str) -> ModuleType | None:
    """A module of torch; None if this version lacks it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None


def is_called_by_torchs(module: str) -> bool:
    """Whether the caller of the function that asks is code of torch's `module`: a function that torch has kept there.

    Torch's own ``save`` calls ``_save_state_dict`` by its name. It stays torch's own for those who hold it.
    """
    return bool(sys._getframe(2).f_globals.get("__name__") == f"{TORCH}.{module}")


def own(key: tuple[str, str]) -> Any:
    """Cairn's object for a key of `OURS`."""
    return getattr(importlib.import_module(OURS[key]), key[1])


def stands_for_base(ours: _Class) -> _Class:
    """Decorates a class that takes the place of its first base, a class of torch.

    In ``isinstance`` and ``issubclass`` it counts all that is of the base as its own: code that finds it under torch's
    name gets the answer that torch's class would give, about older instances and other subclasses too.
    """
    base = ours.__mro__[1]

    def accepts(asked: type, candidate: type) -> Any:
        return base in candidate.__mro__ if asked is ours else NotImplemented

    ours.__subclasshook__ = classmethod(accepts)  # type: ignore[method-assign, assignment]
    return ours
