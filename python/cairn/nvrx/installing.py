"""Cairn behind the names of NVRx and of Megatron-core's asynchronous saves, for programs that must not be changed.

`_MODULES` names the modules. A module that is loaded already gets Cairn's objects in place of its own, and so does
every module that has imported these. A module that is imported later is found by `_Finder`: its own code runs, if
there is any, and then Cairn's objects take their places.
"""

import contextlib
import importlib
import importlib.abc
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from cairn._calls import installing as dcp_installing
from cairn._process import ProcessPart, part

NVRX_VERSION = "0.6.0"  # the version of NVRx whose names and calls Cairn has; Megatron-core asks for it

_NVRX = "nvidia_resiliency_ext"
_DISTRIBUTION = "nvidia-resiliency-ext"
_NVRX_MODULES = f"{_NVRX}.checkpointing.async_ckpt"
_NVRX_MANAGERS = f"{_NVRX}.checkpointing.local.ckpt_managers"
_MEGATRON_MODULES = "megatron.core.dist_checkpointing.strategies"
_PACKAGES = (_NVRX, f"{_NVRX}.checkpointing", _NVRX_MODULES)

#: By module of cairn.nvrx, the names of NVRx that the module has.
_NAMES = {
    "async_ckpt.core": ("AsyncCallsQueue", "AsyncRequest", "abort_nvrx_checkpoint"),
    "async_ckpt.filesystem_async": (
        "FileSystemWriterAsync",
        "_get_write_results_queue",
        "_results_queue",
        "get_write_results_queue",
    ),
    "async_ckpt.state_dict_saver": (
        "CheckpointMetadataCache",
        "get_metadata_caching_status",
        "init_checkpoint_metadata_cache",
        "save_state_dict_async_finalize",
        "save_state_dict_async_plan",
        "verify_global_md_reuse",
    ),
    "async_ckpt.cached_metadata_filesystem_reader": ("CachedMetadataFileSystemReader",),
    "async_ckpt.torch_ckpt": ("TorchAsyncCheckpoint",),
    "local.local_checkpoints": ("LocalCheckpointManager",),
}
#: By module of another package, the module of cairn.nvrx that has its names.
_MODULES = {
    **{f"{_NVRX}.checkpointing.{name}": name for name in _NAMES if name.startswith("async_ckpt.")},
    f"{_NVRX_MANAGERS}.local_manager": "local.local_checkpoints",
    f"{_MEGATRON_MODULES}.async_utils": "async_ckpt.core",
    f"{_MEGATRON_MODULES}.cached_metadata_filesystem_reader": "async_ckpt.cached_metadata_filesystem_reader",
    f"{_MEGATRON_MODULES}.filesystem_async": "async_ckpt.filesystem_async",
    f"{_MEGATRON_MODULES}.state_dict_saver": "async_ckpt.state_dict_saver",
}
_MISSING = object()


def install(**settings: Any) -> None:
    """Makes programs that save by NVRx or by Megatron-core's ``dist_checkpointing`` use Cairn, before or after their
    import.

    Calls :func:`cairn.install` with `settings`: loads, and saves by ``torch.distributed.checkpoint``, use Cairn too.
    Call this in every process, before queues and strategies are made. NVRx may be missing: its four checkpointing
    modules are then Cairn's, and the version of the package is that of :data:`NVRX_VERSION`. The remaining parts of an
    installed NVRx stay as they are.
    """
    dcp_installing.install(**settings)
    state = part(_Installation)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _set_version(state)
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None:
            _fill(module)
    state.references.update(
        dcp_installing.replace_references({id(theirs): ours for theirs, ours in state.replaced.values()})
    )


def uninstall() -> None:
    """Undoes install() and :func:`cairn.install`. Requests that are scheduled stay with Cairn."""
    state = part(_Installation)
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    originals = {place: theirs for place, (theirs, _) in state.replaced.items()}
    for (name, attribute), theirs in (state.references | originals).items():
        if name in sys.modules:
            vars(sys.modules[name])[attribute] = theirs
    # Cairn's `_results_queue` is None, which modules hold under many other names too.
    named = {id(ours): theirs for theirs, ours in state.replaced.values() if ours is not None}
    dcp_installing.replace_references(named)
    for name in state.made:
        sys.modules.pop(name, None)
    package = sys.modules.get(_NVRX)
    if package is not None and state.version is not _MISSING:
        if state.version is None:
            vars(package).pop("__version__", None)
        else:
            vars(package)["__version__"] = state.version
    vars(state).update(vars(_Installation()))
    dcp_installing.uninstall()


class _Installation(ProcessPart):
    """`replaced`: by module and name, the object of the module and Cairn's. `references`: by module and name, the
    objects of modules that had imported these. `made`: modules without code of their own. `version`: the version that
    NVRx's package had before, None for none."""

    def __init__(self) -> None:
        self.replaced: dict[tuple[str, str], tuple[Any, Any]] = {}
        self.references: dict[tuple[str, str], Any] = {}
        self.made: list[str] = []
        self.version: Any = _MISSING

    def in_child(self) -> "_Installation":
        """A child inherits the modules."""
        return self


def _fill(module: ModuleType) -> None:
    """Puts Cairn's objects into a module of `_MODULES`: all names into NVRx's, and the names that Megatron's has."""
    name = module.__name__
    source = _MODULES[name]
    ours = importlib.import_module(f"cairn.nvrx.{source}")
    state = part(_Installation)
    for attribute in _NAMES[source]:
        theirs = vars(module).get(attribute, _MISSING)
        new = getattr(ours, attribute)
        if (theirs is _MISSING and name.startswith(_MEGATRON_MODULES)) or (name, attribute) in state.replaced:
            continue
        if attribute == "save_state_dict_async_plan" and theirs is not _MISSING:
            new = _plan_as_called(theirs, new)
        vars(module)[attribute] = new
        if theirs is not _MISSING and theirs is not None:
            state.replaced[name, attribute] = (theirs, new)


def _plan_as_called(theirs: Any, ours: Any) -> Any:
    """Returns the form of save_state_dict_async_plan that the callers of `theirs` expect."""
    if "cached_ckpt_structure" not in inspect.signature(theirs).parameters:
        return ours
    return importlib.import_module("cairn.nvrx.megatron_core").save_state_dict_async_plan


def _set_version(state: _Installation) -> None:
    """Gives an installed NVRx that is older, or has no ``__version__``, the version of Cairn's names."""
    if state.version is not _MISSING or _real_spec(_NVRX, None, None) is None:
        return
    package = importlib.import_module(_NVRX)
    state.version = getattr(package, "__version__", None)
    if _numbers(str(state.version)) < _numbers(NVRX_VERSION):
        vars(package)["__version__"] = NVRX_VERSION


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _real_spec(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Returns the spec that the import system finds without Cairn."""
    for finder in sys.meta_path:
        if finder is not _finder and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


class _Finder(importlib.metadata.DistributionFinder):
    """The first finder: of the modules of `_MODULES`, and of NVRx's version."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns None for modules that Cairn leaves alone."""
        if fullname not in _MODULES and fullname not in _PACKAGES:
            return None
        spec = _real_spec(fullname, path, target)
        if fullname in _PACKAGES:
            return ModuleSpec(fullname, _Loader(None), is_package=True) if spec is None else None
        if spec is None:
            return ModuleSpec(fullname, _Loader(None)) if fullname.startswith(_NVRX) else None
        spec.loader = _Loader(spec.loader)
        return spec

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        """Yields NVRx, if it is asked for and is missing or older than `NVRX_VERSION`."""
        asked = getattr(context, "name", None)
        if not isinstance(asked, str) or re.sub(r"[-_.]+", "-", asked).lower() != _DISTRIBUTION:
            return
        installed = max((_numbers(found.version) for found in _installed(context)), default=())
        if installed < _numbers(NVRX_VERSION):
            yield _Distribution()


def _installed(context: Any) -> Iterator[importlib.metadata.Distribution]:
    for finder in sys.meta_path:
        find = getattr(finder, "find_distributions", None)
        if finder is not _finder and find is not None:
            yield from find(context)


class _Distribution(importlib.metadata.Distribution):
    """NVRx's package metadata, as far as programs look at it: name and version."""

    def read_text(self, filename: str) -> str | None:
        """Returns the file METADATA; there is no other."""
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {NVRX_VERSION}\n"

    def locate_file(self, path: Any) -> Path:
        """Returns the path unchanged: the distribution has no files."""
        return Path(path)


class _Loader(importlib.abc.Loader):
    """Runs a module's own code, if there is any, and then puts Cairn's objects into the module."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader."""
        return None if self._real is None else self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module."""
        name = module.__name__
        if self._real is None:
            part(_Installation).made.append(name)
        else:
            # NVRx's own modules may lack a package that Cairn's do not need.
            ignored = ImportError if name.startswith(_NVRX) else ()
            with contextlib.suppress(ignored):  # type: ignore[arg-type]
                self._real.exec_module(module)
        if name == _NVRX:
            vars(module)["__version__"] = NVRX_VERSION
        if name in _MODULES:
            _fill(module)


_finder = _Finder()
