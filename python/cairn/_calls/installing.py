"""Cairn behind the names of ``torch.distributed.checkpoint``, for programs that must not be changed."""

import contextlib
import copyreg
import importlib
import sys
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cairn._process import part
from cairn._settings import Installation
from cairn._torch_names import replacements
from cairn.errors import InvalidArgument

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


def install(
    *,
    async_checkpointer_type: "AsyncCheckpointerType | None" = None,
    allow_pickle: bool | None = None,
    allow_cast: bool | None = None,
    follow_links: bool | None = None,
) -> None:
    """Makes programs that use ``torch.distributed.checkpoint`` use Cairn.

    Cairn's functions and classes replace torch's in torch's modules, and under any name in every loaded module that has
    imported torch's objects; the order of the imports does not matter. Existing objects keep working: ``isinstance``
    and ``issubclass`` with Cairn's class accept instances and subclasses of torch's class.

    Not replaced are references outside module namespaces: closures, default arguments, ``functools.partial``, class and
    instance attributes, containers, and the base classes of existing classes. Each process installs for itself: a
    spawned process without its own installation uses stock torch (for example the daemon of
    ``AsyncCheckpointerType.PROCESS``).

    `async_checkpointer_type` overrides the type that each ``async_save`` requests: frameworks request DCP's default,
    THREAD; with PROCESS their saves survive the trainer. `allow_pickle` applies to all loads whose own `allow_pickle`
    is None: True lets checkpoints run code. `allow_cast`: False refuses a load that changes a dtype in another way than
    float to float; by default these loads convert, as DCP's do, and a ConversionWarning names the keys. `follow_links`:
    True allows data files that are symbolic links, in all calls whose own `follow_links` is None; None allows them only
    if the environment variable CAIRN_FOLLOW_LINKS is 1. None keeps the value of an earlier call.

    A second call is allowed, and replaces references to torch's objects that modules have acquired since the first.
    Safe to call from any thread; a concurrent import in another thread may be missed. Raises ModuleNotFoundError
    without torch, InvalidArgument for a wrong argument; nothing is changed then.
    """
    flags = {"allow_pickle": allow_pickle, "allow_cast": allow_cast, "follow_links": follow_links}
    for name, value in flags.items():
        if value is not None and not isinstance(value, bool):
            raise InvalidArgument(f"{name} must be True, False or None", actual=repr(value))
    from cairn._async import preparation
    from cairn._calls.async_save import check_type  # imports torch

    if async_checkpointer_type is not None:
        check_type(async_checkpointer_type)
    installation = part(Installation)
    with installation.lock:
        for name, value in flags.items():
            if value is not None:
                setattr(installation, name, value)
        installation.async_checkpointer_type = async_checkpointer_type or installation.async_checkpointer_type
        pairs = [(theirs, replacements.own(key)) for key, theirs in replacements.originals().items()]
        _load_subclasses()
        if not installation.is_installed:
            installation.earlier_references = places_of({id(ours) for _, ours in pairs})
        installation.is_installed = True
        for theirs, _ in pairs:
            if isinstance(theirs, type):
                copyreg.pickle(theirs, _reduce)
        replace_references({id(theirs): ours for theirs, ours in pairs})
    if async_checkpointer_type is not None:
        preparation.declare()


def uninstall() -> None:
    """Restores torch's objects, also in modules that were loaded since :func:`install`, and forgets the arguments of
    install().

    Names that already held Cairn's objects before the installation keep them. A module that was loaded since then gets
    torch's objects under all names, even under names that the module imported from Cairn: the two cases can't be
    distinguished. Does nothing if not installed.
    """
    installation = part(Installation)
    with installation.lock:
        if not installation.is_installed:
            return
        originals = replacements.originals()
        torchs = {id(replacements.own(key)): theirs for key, theirs in originals.items()}
        replace_references(torchs, installation.earlier_references)
        for theirs in originals.values():
            copyreg.dispatch_table.pop(theirs, None)
        installation.forget()


def _load_subclasses() -> None:
    """Imports torch's modules whose classes must derive from torch's original classes, but which torch loads late."""
    with contextlib.suppress(ImportError):  # fsspec is optional
        importlib.import_module(importlib.import_module("cairn._torch_names.torch_floor").FSSPEC_MODULE)


def _references() -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """Yields module, namespace, name and value of every global of the loaded modules, torch's first, without
    Cairn's."""
    modules = sorted(sys.modules.items(), key=lambda item: not item[0].startswith(replacements.TORCH))
    for module_name, module in modules:
        # Neither isinstance nor vars(): both would load modules that load lazily.
        if not issubclass(type(module), ModuleType) or module_name.partition(".")[0] == "cairn":
            continue
        namespace = object.__getattribute__(module, "__dict__")
        for name, value in list(namespace.items()):
            yield module_name, namespace, name, value


def places_of(objects: Collection[int]) -> set[tuple[str, str]]:
    """Returns module and name of the globals that hold one of `objects`, which are ids; without Cairn's modules."""
    return {(module, name) for module, _, name, value in _references() if id(value) in objects}


def replace_references(new_of: dict[int, Any], spared: Collection[tuple[str, str]] = ()) -> dict[tuple[str, str], Any]:
    """Replaces the globals of the loaded modules, without Cairn's, by the objects of `new_of`, whose keys are ids.

    `spared`: modules and names that keep their objects. Returns the replaced objects, by module and name.
    """
    replaced = {}
    for module, namespace, name, value in _references():
        if id(value) in new_of and (module, name) not in spared:
            namespace[name] = new_of[id(value)]
            replaced[module, name] = value
    return replaced


def _reduce(instance: Any) -> tuple[Any, ...]:
    """Pickles an instance of a replaced class, because pickle would not find the class under its name."""
    kind = type(instance)
    key = next(key for key, theirs in replacements.originals().items() if theirs is kind)
    _, _, *state = instance.__reduce_ex__(4)
    return _blank, key, *state


def _blank(module: str, name: str) -> Any:
    kind = replacements.original(module, name)
    return kind.__new__(kind)
