"""Cairn behind the names of ``torch.distributed.checkpoint``, for programs that are not to be changed."""

import contextlib
import copyreg
import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cairn._mirror import replacements
from cairn._settings import casts, consent
from cairn.errors import InvalidArgument

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

_lock = threading.RLock()
_explicit: set[tuple[str, str]] | None = None  # who held Cairn's objects before; None: not installed


def install(
    *,
    async_checkpointer_type: "AsyncCheckpointerType | None" = None,
    allow_pickle: bool | None = None,
    allow_cast: bool | None = None,
) -> None:
    """Lets programs that use ``torch.distributed.checkpoint`` use Cairn.

    Cairn's functions and classes are put in the place of torch's: in torch's modules, and under any name in every
    loaded module that has imported torch's, so that the order of the imports does not matter. Objects that exist
    already go on working: ``isinstance`` and ``issubclass`` with the new class accept instances and subclasses of the
    old one.

    Out of reach are references that no module's namespace holds: closures, default arguments, ``functools.partial``,
    class and instance attributes, containers; and the base classes of classes that exist. Also other processes: one
    that is spawned installs for itself, or uses stock torch (so the daemon of ``AsyncCheckpointerType.PROCESS``).

    `async_checkpointer_type` takes the place of the one that each ``async_save`` asks for: frameworks ask for DCP's
    default, THREAD; with PROCESS their saves survive the trainer. `allow_pickle` is for all loads that leave their own
    `allow_pickle` at None: True lets checkpoints run code. `allow_cast`: False refuses a load that changes a dtype in
    other ways than float to float; by default such loads convert, as DCP's do, and a ConversionWarning names the keys.
    None leaves an earlier call's value in force.

    May be called again, and then reaches what has got hold of torch's objects since. Safe to call from any thread; what
    another thread imports at the same moment may be missed. ModuleNotFoundError without torch, InvalidArgument for a
    wrong argument; nothing is changed then.
    """
    global _explicit  # noqa: PLW0603
    for name, value in (("allow_pickle", allow_pickle), ("allow_cast", allow_cast)):
        if value is not None and not isinstance(value, bool):
            raise InvalidArgument(f"{name} is True, False or None", actual=repr(value))
    async_saving = importlib.import_module("cairn._calls.async_save")  # imports torch
    with _lock:
        if async_checkpointer_type is not None:
            async_saving.use_checkpointer_type(async_checkpointer_type)
        consent.installed.note_installation(allow_pickle)
        casts.installed.note_installation(allow_cast)
        pairs = [(theirs, replacements.own(key)) for key, theirs in replacements.originals().items()]
        _load_subclasses()
        if _explicit is None:
            own = {id(ours) for _, ours in pairs}
            _explicit = {(module, name) for module, _, name, value in _names() if id(value) in own}
        for theirs, _ in pairs:
            if isinstance(theirs, type):
                copyreg.pickle(theirs, _reduce)
        _replace({id(theirs): ours for theirs, ours in pairs}, set())


def uninstall() -> None:
    """Puts torch's objects back, in modules that were loaded since :func:`install` too, and forgets its arguments.

    Names that already stood for Cairn's objects before the installation stay. A module loaded since then that asked for
    them by Cairn's name can't be told from one that asked by torch's, and gets torch's. Does nothing if not installed.
    """
    global _explicit  # noqa: PLW0603
    with _lock:
        if _explicit is None:
            return
        originals = replacements.originals()
        _replace({id(replacements.own(key)): theirs for key, theirs in originals.items()}, _explicit)
        importlib.import_module("cairn._calls.async_save").use_checkpointer_type(None)
        consent.installed.note_removal()
        casts.installed.note_removal()
        for theirs in originals.values():
            copyreg.dispatch_table.pop(theirs, None)
        _explicit = None


def _load_subclasses() -> None:
    """Modules of torch that derive from what is replaced, and must derive from torch's, but are loaded late."""
    with contextlib.suppress(ImportError):  # fsspec is optional
        importlib.import_module(f"{replacements.TORCH}._fsspec_filesystem")


def _names() -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """Module, namespace, name and value of all that loaded modules hold, torch's first; Cairn's own are left out."""
    modules = sorted(sys.modules.items(), key=lambda item: not item[0].startswith(replacements.TORCH))
    for module_name, module in modules:
        # Not isinstance, nor vars(): modules that load themselves late would load now.
        if not issubclass(type(module), ModuleType) or module_name.partition(".")[0] == "cairn":
            continue
        namespace = object.__getattribute__(module, "__dict__")
        for name, value in list(namespace.items()):
            yield module_name, namespace, name, value


def _replace(new_of: dict[int, Any], spared: set[tuple[str, str]]) -> None:
    for module, namespace, name, value in _names():
        if id(value) in new_of and (module, name) not in spared:
            namespace[name] = new_of[id(value)]


def _reduce(instance: Any) -> tuple[Any, ...]:
    """Pickles an instance of a replaced class, which pickle would not find under its name."""
    kind = type(instance)
    key = next(key for key, theirs in replacements.originals().items() if theirs is kind)
    _, _, *state = instance.__reduce_ex__(4)
    return _blank, key, *state


def _blank(module: str, name: str) -> Any:
    kind = replacements.original(module, name)
    return kind.__new__(kind)
