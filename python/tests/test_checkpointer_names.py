"""cairn.checkpointer has the names of torch's rank-local checkpointers, by module, with equal parameters."""

import dataclasses
import enum
import importlib
import inspect
import pickle
import pkgutil
from types import ModuleType
from typing import Any

import pytest
from programs import run, run_after_torch

import cairn.checkpointer

experimental = pytest.importorskip("torch.distributed.checkpoint._experimental")  # in torch since 2.8
MODULES = [found.name for found in pkgutil.iter_modules(experimental.__path__)]


def defined_in(module: ModuleType) -> dict[str, Any]:
    """The public classes and functions that a module defines, and two public constants."""
    named = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = {
        name: value
        for name, value in named.items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__
    }
    return own | {name: named[name] for name in ("BARRIER_REGISTRY", "STATE_DICT") if name in named}


def assert_takes_the_same(ours: Any, theirs: Any, where: str) -> None:
    """Ours takes all parameters of torch's, by position and by name; further parameters of ours have defaults."""
    mine = inspect.signature(ours).parameters
    for parameter in inspect.signature(theirs).parameters.values():
        assert parameter.name in mine, f"{where} lacks {parameter.name}"
        own = mine[parameter.name]
        assert own.kind is parameter.kind, f"{where}: {parameter.name}"
        if parameter.default is not parameter.empty:
            assert own.default is not own.empty, f"{where}: {parameter.name} needs no value"
    others = [mine[name] for name in mine.keys() - inspect.signature(theirs).parameters.keys()]
    assert all(own.default is not own.empty for own in others), where
    positional = [name for name, own in inspect.signature(theirs).parameters.items() if own.kind < own.VAR_POSITIONAL]
    assert list(mine)[: len(positional)] == positional, where


def test_the_package_has_the_names_that_torch_exports() -> None:
    assert set(experimental.__all__) <= set(cairn.checkpointer.__all__)
    for name in cairn.checkpointer.__all__:
        assert getattr(cairn.checkpointer, name).__class__ is not ModuleType


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_the_names_of_torchs_module(module: str) -> None:
    theirs = importlib.import_module(f"{experimental.__name__}.{module}")
    ours = importlib.import_module(f"cairn.checkpointer.{module}")
    names = defined_in(theirs)
    assert names
    for name, value in names.items():
        own = getattr(ours, name)
        assert own is not value or name == "STATE_DICT"
        if dataclasses.is_dataclass(value):
            # Defaults that are classes of the package differ only in their class.
            assert [field.name for field in dataclasses.fields(own)] == [f.name for f in dataclasses.fields(value)]
            assert [field.default for field in dataclasses.fields(own)] == [
                f.default for f in dataclasses.fields(value)
            ]
        elif inspect.isclass(value) and issubclass(value, enum.Enum):
            assert {member.name: member.value for member in own} == {member.name: member.value for member in value}
        elif inspect.isclass(value):
            assert inspect.isabstract(own) == inspect.isabstract(value), name
            assert_takes_the_same(own, value, name)
            for method, theirs_of_it in inspect.getmembers(value, inspect.isfunction):
                if not method.startswith("_"):
                    assert_takes_the_same(getattr(own, method), theirs_of_it, f"{name}.{method}")
        elif inspect.isfunction(value):
            assert_takes_the_same(own, value, name)


def test_the_barriers_have_the_same_types() -> None:
    theirs = importlib.import_module(f"{experimental.__name__}.barriers").BARRIER_REGISTRY
    assert theirs.keys() <= cairn.checkpointer.BARRIER_REGISTRY.keys()


def test_classes_sent_to_processes_are_importable_by_name() -> None:
    info = cairn.checkpointer.RankInfo(1, 2)
    assert pickle.loads(pickle.dumps(info)) == info
    config = cairn.checkpointer.CheckpointerConfig()
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "program",
    [
        "import cairn.checkpointer.types as m; m.RankInfo",
        "from cairn.checkpointer.utils import wrap_future",
        "from cairn.checkpointer import types, utils; types.STATE_DICT, utils.wrap_future",
    ],
)
def test_a_module_may_be_the_first_thing_that_a_program_imports(program: str) -> None:
    run(program)


@pytest.mark.parametrize(
    "program",
    [
        "import cairn._experimental.builder as m",
        "from cairn._experimental import builder as m",
        "import cairn; m = cairn._experimental.builder",
        "import cairn._experimental; m = cairn._experimental.builder",
    ],
)
def test_the_experimental_package_is_cairns_own(program: str) -> None:
    """Also with a torch that lacks the package."""
    without = "import sys; sys.modules['torch.distributed.checkpoint._experimental'] = None"
    check = """
import importlib, pkgutil, cairn.checkpointer
assert m is cairn.checkpointer.builder
for found in pkgutil.iter_modules(cairn.checkpointer.__path__):
    ours = importlib.import_module(f"cairn.checkpointer.{found.name}")
    assert importlib.import_module(f"cairn._experimental.{found.name}") is ours
from cairn._experimental import make_sync_checkpointer, RankInfo
from cairn._experimental.types import RankInfo as named
assert make_sync_checkpointer is cairn.checkpointer.make_sync_checkpointer and named is RankInfo
"""
    for start in ("", without):
        run_after_torch(f"{start}\n{program}\n{check}")


def test_importing_the_package_does_not_import_the_checkpointers() -> None:
    run("import sys, cairn; assert 'torch' not in sys.modules and 'cairn.checkpointer' not in sys.modules")
