"""Cairn under the names of ``torch.distributed.checkpoint``.

Every name that a module of that package has, Cairn's module of the same name has too: ``cairn.state_dict`` stands for
``torch.distributed.checkpoint.state_dict``, private names and sub-packages included. `OURS` says which of them are
Cairn's own. The others are torch's objects themselves, looked up anew each time they are asked for.

A module for which Cairn has no file is made when it is first imported. One that has a file (``cairn.filesystem``) holds
what is Cairn's own, and ends with ``__getattr__, __dir__ = mirror.names_of(__name__)`` for the rest.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, TypeVar

TORCH = "torch.distributed.checkpoint"

# What is Cairn's own: the module of `TORCH` that defines it and its name there; the module of Cairn that has its own.
OURS = {
    ("filesystem", "FileSystemReader"): "cairn.filesystem",
    ("filesystem", "FileSystemWriter"): "cairn.filesystem",
    ("format_utils", "BroadcastingTorchSaveReader"): "cairn.file_conversion",
    ("format_utils", "dcp_to_torch_save"): "cairn.file_conversion",
    ("format_utils", "torch_save_to_dcp"): "cairn.file_conversion",
    ("state_dict_loader", "_load_state_dict_from_keys"): "cairn.protocol",
    ("state_dict_loader", "load"): "cairn.loading",
    ("state_dict_loader", "_load_state_dict"): "cairn.loading",
    ("state_dict_loader", "load_state_dict"): "cairn.loading",
    ("staging", "BlockingAsyncStager"): "cairn.staging",
    ("staging", "DefaultStager"): "cairn.staging",
    ("state_dict_saver", "async_save"): "cairn.async_saving",
    ("state_dict_saver", "save"): "cairn.saving",
    ("state_dict_saver", "_save_state_dict"): "cairn.saving",
    ("state_dict_saver", "save_state_dict"): "cairn.saving",
}

# Modules of Cairn that are programs as torch's are: ``python -m cairn.format_utils`` calls this module's ``main``.
_PROGRAMS = {"cairn.format_utils": "cairn.file_conversion"}

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


def names_of(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for Cairn's module `module`: they add what torch's module of that name has."""
    theirs = TORCH + module.removeprefix("cairn")

    def look_up(name: str) -> Any:
        return _attribute(module, theirs, name)

    def list_names() -> list[str]:
        here = vars(sys.modules[module])
        torch_module = sys.modules.get(theirs)
        return sorted({*here.get("__all__", here), *(() if torch_module is None else dir(torch_module))})

    return look_up, list_names


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


def find_modules() -> None:
    """Makes the modules that only torch has importable as Cairn's."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder:
    """Finds and loads. It comes last: it is asked for ``cairn.<name>`` only if Cairn has no file of that name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("cairn."):
            return None
        try:
            found = _find(TORCH + fullname.removeprefix("cairn"))
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            message = f"No module named '{fullname}'; those of {TORCH} need torch, which is not installed"
            raise ModuleNotFoundError(message, name=fullname) from error
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=found.name, is_package=is_package)  # type: ignore[arg-type]

    def get_code(self, fullname: str) -> CodeType | None:
        """For ``python -m``; None for what is no program."""
        if fullname not in _PROGRAMS:
            return None
        return compile(f"import sys, {_PROGRAMS[fullname]} as it\nsys.exit(it.main())\n", fullname, "exec")

    def create_module(self, spec: ModuleSpec) -> None:
        """As Python makes modules."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        theirs = importlib.import_module(TORCH + name.removeprefix("cairn"))
        module.__doc__ = f"{theirs.__name__}, with what is Cairn's own in its place."
        module.__dict__["__getattr__"], module.__dict__["__dir__"] = names_of(name)


def _find(module: str) -> ModuleSpec | None:
    import importlib.util  # takes its time, and `import cairn` does not need it

    return importlib.util.find_spec(module)


def _attribute(module: str, theirs: str, name: str) -> Any:
    """What Cairn's `module` has as `name` if torch's module `theirs` has it."""
    if name == "__all__":
        return _star(importlib.import_module(theirs))
    if not (name.startswith("__") and name.endswith("__")):  # those say what a module itself is
        torch_module = importlib.import_module(theirs)
        value = getattr(torch_module, name, _MISSING)
        if value is not _MISSING:
            return _ours_if_any(value)
        if hasattr(torch_module, "__path__") and _find(f"{theirs}.{name}") is not None:
            return importlib.import_module(f"{module}.{name}")  # torch's has not been imported yet
    raise AttributeError(f"module '{module}' has no attribute '{name}'", name=name, obj=sys.modules[module])


def _star(module: ModuleType) -> list[str]:
    """What ``from module import *`` takes."""
    public = [name for name in vars(module) if not name.startswith("_")]
    return list(getattr(module, "__all__", public))


def _ours_if_any(value: Any) -> Any:
    if isinstance(value, ModuleType):
        name = value.__name__
        within = name == TORCH or name.startswith(f"{TORCH}.")
        return importlib.import_module("cairn" + name.removeprefix(TORCH)) if within else value
    return next((own(key) for key, theirs in originals().items() if value is theirs), value)
