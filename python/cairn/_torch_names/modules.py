"""The modules of ``torch.distributed.checkpoint`` under the name ``cairn``.

For every module of torch's package, Cairn has a module with all names of torch's module: ``cairn.state_dict`` mirrors
``torch.distributed.checkpoint.state_dict``, private names and sub-packages included. `replacements.OURS` lists the
names of Cairn's own objects. All remaining names give torch's objects, looked up at each access.

A module without a file in Cairn is made at its first import. A module with a file (``cairn.filesystem``,
``cairn.errors``) holds Cairn's own objects, and ends with ``__getattr__, __dir__ = modules.names_of(__name__)``: where
torch has a module of that name, now or in a later version, torch's names are in Cairn's module too. So no public module
of Cairn's hides a module of torch's. The modules of Cairn's whose names torch does not have today do this behind ``if
not TYPE_CHECKING``: a type checker would accept any name in them.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from cairn._torch_names.replacements import TORCH, imported, originals, own

# Modules of Cairn that are programs, as torch's are: ``python -m cairn.format_utils`` calls the named module's
# ``main``.
_PROGRAMS = {"cairn.format_utils": "cairn._torch_files.file_conversion"}

# The exports of later versions of torch, each with the file of torch's module: torch 2.14, then torch 2.15.
_LATER_EXPORTS = (
    ("protocol.py", ("CheckpointableTensor",)),
    ("fsspec_filesystem.py", ("FsspecReader", "FsspecWriter")),
)

_MISSING = object()


def names_of(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` for Cairn's module `module`, with the names of torch's module."""
    theirs = TORCH + module.removeprefix("cairn")

    def look_up(name: str) -> Any:
        return _attribute(module, theirs, name)

    def list_names() -> list[str]:
        here = vars(sys.modules[module])
        torch_module = sys.modules.get(theirs)
        return sorted({*here.get("__all__", here), *(() if torch_module is None else dir(torch_module))})

    return look_up, list_names


def find_modules() -> None:
    """Makes the modules that only torch has importable under ``cairn``."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def has_torch() -> bool:
    """Returns whether torch is installed, without an import of torch."""
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None  # None: an import of torch is blocked
    return _torch_file() is not None


def later_exports() -> tuple[str, ...]:
    """Returns the names that the installed torch exports and torch 2.13 does not, without an import of torch."""
    file = getattr(sys.modules["torch"], "__file__", None) if "torch" in sys.modules else _torch_file()
    if file is None:
        return ()
    folder = os.path.join(os.path.dirname(file), "distributed", "checkpoint")  # noqa: PTH118, PTH120 - a slow import
    found = (names for module, names in _LATER_EXPORTS if os.path.exists(os.path.join(folder, module)))  # noqa: PTH110, PTH118
    return tuple(name for names in found for name in names)


def _torch_file() -> str | None:
    try:
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        specs = (finder.find_spec("torch", None) for finder in finders)
        return next((spec.origin for spec in specs if spec is not None and spec.origin is not None), None)
    except ImportError:
        return None


class _Finder:
    """A meta path finder and loader. The last finder: Python asks for ``cairn.<name>`` only if Cairn has no such
    file."""

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
            # ``from cairn import save`` would hide an error with the name of the module itself
            raise ModuleNotFoundError(message, name=error.name) from error
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=found.name, is_package=is_package)  # type: ignore[arg-type]

    def get_code(self, fullname: str) -> CodeType | None:
        """For ``python -m``; None: the module is no program."""
        if fullname not in _PROGRAMS:
            return None
        return compile(f"import sys, {_PROGRAMS[fullname]} as it\nsys.exit(it.main())\n", fullname, "exec")

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's default creation."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        theirs = importlib.import_module(TORCH + name.removeprefix("cairn"))
        module.__doc__ = f"{theirs.__name__}, with what is Cairn's own in its place."
        module.__dict__["__getattr__"], module.__dict__["__dir__"] = names_of(name)


def _find(module: str) -> ModuleSpec | None:
    import importlib.util  # a slow import that `import cairn` does not need

    return importlib.util.find_spec(module)


def _attribute(module: str, theirs: str, name: str) -> Any:
    """Returns the object of Cairn's `module` for `name`, a name of torch's module `theirs`."""
    if name == "__all__" and (torch_module := _torchs(module, theirs)) is not None:
        return _star(torch_module)
    if not (name.startswith("__") and name.endswith("__")):  # dunder names describe the module itself
        torch_module = _torchs(module, theirs)
        value = getattr(torch_module, name, _MISSING)
        if value is not _MISSING:
            return _ours_if_any(value)
        if hasattr(torch_module, "__path__") and _find(f"{theirs}.{name}") is not None:
            return importlib.import_module(f"{module}.{name}")  # torch's module has not been imported yet
    raise AttributeError(f"module '{module}' has no attribute '{name}'", name=name, obj=sys.modules[module])


def _torchs(module: str, theirs: str) -> ModuleType | None:
    """Torch's module `theirs`. None if torch has no such module, or if only Cairn's `module` works without torch."""
    try:
        return imported(theirs)
    except ModuleNotFoundError as error:
        if error.name != "torch" or module == "cairn":
            raise
        return None


def _star(module: ModuleType) -> list[str]:
    """Returns the names that ``from module import *`` imports."""
    public = [name for name in vars(module) if not name.startswith("_")]
    return list(getattr(module, "__all__", public))


def _ours_if_any(value: Any) -> Any:
    if isinstance(value, ModuleType):
        name = value.__name__
        within = name == TORCH or name.startswith(f"{TORCH}.")
        return importlib.import_module("cairn" + name.removeprefix(TORCH)) if within else value
    return next((own(key) for key, theirs in originals().items() if value is theirs), value)
