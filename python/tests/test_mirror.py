"""Every name of torch.distributed.checkpoint exists in Cairn too: as Cairn's own object or as torch's."""

import ast
import importlib
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from programs import WITHOUT_TORCH, run
from torch.distributed.checkpoint.planner import SavePlan

import cairn
from cairn._torch_names import replacements

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTAL = f"{dcp.__name__}._experimental"  # Cairn has its own: test_checkpointer_names.py
MODULES = [
    dcp.__name__,
    *(
        found.name
        for found in pkgutil.walk_packages(dcp.__path__, f"{dcp.__name__}.")
        if not found.name.startswith(EXPERIMENTAL)
    ),
]

# A second copy of mirror.OURS: a lost row fails the comparison.
OWN = {
    ("_consolidate_hf_safetensors", "consolidate_safetensors_files"): "cairn._calls.consolidation",
    ("_consolidate_hf_safetensors", "consolidate_safetensors_files_on_every_rank"): "cairn._calls.consolidation",
    ("hf_storage", "HuggingFaceStorageReader"): "cairn.hf_storage",
    ("hf_storage", "HuggingFaceStorageWriter"): "cairn.hf_storage",
    ("quantized_hf_storage", "QuantizedHuggingFaceStorageReader"): "cairn.hf_storage",
    ("filesystem", "FileSystemReader"): "cairn.filesystem",
    ("filesystem", "FileSystemWriter"): "cairn.filesystem",
    ("format_utils", "BroadcastingTorchSaveReader"): "cairn._torch_files.file_conversion",
    ("format_utils", "dcp_to_torch_save"): "cairn._torch_files.file_conversion",
    ("format_utils", "torch_save_to_dcp"): "cairn._torch_files.file_conversion",
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


# Modules that torch has added since 2.13, up to 2.15.
LATER_MODULES = {"fsspec_filesystem", "protocol"}
# The names that torch has exported since 2.13, up to 2.15.
LATER_EXPORTS = {"CheckpointableTensor", "FsspecReader", "FsspecWriter"}
# The modules with files of Cairn's own that mirror a module of torch's.
MIRRORED = {"_experimental", "filesystem", "hf_storage", "staging"}
HERE = {path.stem for path in (ROOT / "python/cairn").iterdir() if path.suffix == ".py" or path.is_dir()}
PUBLIC = sorted(name for name in HERE - MIRRORED if not name.startswith("_"))


def cairns(module: str) -> str:
    return "cairn" + module.removeprefix(dcp.__name__)


def names_of(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


def expected(value: Any) -> Any:
    """Returns the object that Cairn should have for torch's `value`."""
    if isinstance(value, ModuleType) and value.__name__ in (*MODULES, EXPERIMENTAL):
        return importlib.import_module(cairns(value.__name__))
    for (module, name), home in OWN.items():
        if value is getattr(importlib.import_module(f"{dcp.__name__}.{module}"), name):
            return getattr(importlib.import_module(home), name)
    return value


def test_the_modules_equal_the_modules_of_torch() -> None:
    names = {name.removeprefix(f"{dcp.__name__}.") for name in MODULES}
    assert {"state_dict", "planner_helpers", "_checkpointer", "filesystem", "utils"} <= names


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_torchs_or_cairns_own(module: str) -> None:
    theirs = importlib.import_module(module)
    ours = importlib.import_module(cairns(module))
    assert ours is not theirs
    listed = dir(ours)
    for name, value in names_of(theirs).items():
        assert getattr(ours, name) is expected(value), name
        assert name in listed


@pytest.mark.parametrize("module", MODULES[1:])
def test_a_star_import_takes_the_names_of_torch(module: str) -> None:
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    exec(f"from {module} import *", theirs)
    exec(f"from {cairns(module)} import *", ours)
    del theirs["__builtins__"], ours["__builtins__"]
    assert {name: expected(value) for name, value in theirs.items()} == ours


def test_the_package_exports_the_names_of_torch() -> None:
    exported = {name for name, value in names_of(dcp).items() if not isinstance(value, ModuleType)}
    assert {"SavePlan", "StorageWriter", "CheckpointException", "async_save"} <= exported <= set(cairn.__all__)
    assert LATER_EXPORTS & exported == LATER_EXPORTS & set(cairn.__all__)


def test_the_exports_do_not_depend_on_the_order_of_imports() -> None:
    program = "import sys, {first}, cairn, torch; print(sorted(cairn.__all__))"
    lists = {run(program.format(first=first)) for first in ("torch", "cairn")}
    assert lists == {str(sorted(cairn.__all__))}


def test_replacements_are_listed_once() -> None:
    assert OWN == replacements.OURS
    for key, home in OWN.items():
        value = replacements.own(key)
        assert value.__module__ == home
        assert value is not replacements.original(*key)
        assert replacements.original(*key) is getattr(importlib.import_module(f"{dcp.__name__}.{key[0]}"), key[1])


def test_no_module_of_cairns_hides_one_of_torchs() -> None:
    found = {module.name for module in pkgutil.iter_modules(dcp.__path__)}
    assert HERE & (found | LATER_MODULES) == MIRRORED


def test_a_later_module_of_torchs_shows_through_the_public_module_of_its_name(tmp_path: Path) -> None:
    """A folder with a module for each public name stands for a later version of torch."""
    assert {"errors", "warnings", "checkpoint", "arrays", "in_flight", "checkpointer"} <= set(PUBLIC)
    names = [name for name in PUBLIC if name != "transformers"]  # .venv has no Transformers
    for name in names:
        (tmp_path / f"{name}.py").write_text("class Later:\n    pass\n")
    program = """
        import importlib, sys
        import torch.distributed.checkpoint as dcp
        import cairn
        dcp.__path__.append(sys.argv[1])
        for name in sys.argv[2:]:
            ours = importlib.import_module(f"cairn.{name}")
            assert not hasattr(ours, "nonsense")
            later = importlib.import_module(f"{dcp.__name__}.{name}").Later
            assert ours.Later is later and "Later" in dir(ours), name
        from cairn.errors import Later, NotFound
    """
    run(program, str(tmp_path), *names)


def test_a_name_that_a_public_module_lacks_needs_no_torch() -> None:
    run(WITHOUT_TORCH + "import cairn.errors\nassert not hasattr(cairn.errors, 'nonsense')")


def test_names_that_torch_lacks_are_missing() -> None:
    assert not hasattr(cairn, "nonsense")
    assert not hasattr(cairn, "__path_of_nonsense__")
    with pytest.raises(AttributeError, match=r"module 'cairn\.state_dict' has no attribute 'nonsense'"):
        importlib.import_module("cairn.state_dict").nonsense  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nonsense' from 'cairn'"):
        exec("from cairn import nonsense")
    with pytest.raises(ImportError, match=r"cannot import name 'nonsense' from 'cairn\.filesystem'"):
        exec("from cairn.filesystem import nonsense")
    for module in ("cairn.nonsense", "cairn.state_dict.nonsense", "cairn._experimental.nonsense"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{module}'"):
            importlib.import_module(module)


def test_objects_keep_the_name_in_pickles() -> None:
    assert cairn.SavePlan is SavePlan
    assert b"torch.distributed.checkpoint.planner" in pickle.dumps(cairn.SavePlan([]))


def test_names_are_looked_up_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    process = importlib.import_module("torch.distributed.checkpoint._async_process_executor")
    sentinel = object()
    monkeypatch.setattr(process, "_CHECKPOINT_PROCESS", sentinel)
    assert importlib.import_module("cairn._async_process_executor")._CHECKPOINT_PROCESS is sentinel


@pytest.mark.parametrize(
    "program",
    [
        "from cairn.state_dict import get_model_state_dict as got",
        "from cairn.filesystem import _StoragePrefix as got, FileSystemWriter",
        "import cairn as dcp; got = dcp.state_dict_saver.AsyncCheckpointerType",
        "from cairn import format_utils; got = format_utils.DynamicMetaLoadPlanner",
    ],
)
def test_every_module_can_be_imported_first(program: str) -> None:
    assert run(f"{program}\nprint(got.__module__)").startswith("torch.distributed.checkpoint.")


def test_without_torch_modules_name_the_missing_package() -> None:
    program = WITHOUT_TORCH + (
        "import cairn\n"
        "assert not hasattr(cairn, 'state_dict')\n"
        "assert 'SavePlan' in dir(cairn)\n"
        "for form in ('import cairn.state_dict', 'from cairn.state_dict import get_model_state_dict'):\n"
        "    try:\n"
        "        exec(form)\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert \"'cairn.state_dict'\" in str(error) and 'need torch' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(form)\n"
        "try:\n"
        "    cairn.install()\n"
        "except ModuleNotFoundError as error:\n"
        "    assert error.name == 'torch'\n"
        "else:\n"
        "    raise AssertionError('installed')\n"
        "cairn.uninstall()"
    )
    run(program)


def test_a_list_of_names_imports_nothing() -> None:
    run(
        "import sys, cairn; dir(cairn); cairn.__all__; hasattr(cairn, '__wrapped__'); assert 'torch' not in sys.modules"
    )


def test_type_checkers_find_the_exported_names() -> None:
    tree = ast.parse((ROOT / "python/cairn/__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    # A stub cannot import what the installed torch may lack: the stub's __getattr__ stands for the later names.
    listed = {alias.asname or "" for node in imports for alias in node.names}
    assert listed == set(cairn.__all__) - LATER_EXPORTS and len(set(cairn.__all__)) == len(cairn.__all__)
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    for name, home in homes.items():
        assert getattr(importlib.import_module(home), name) is getattr(cairn, name)


@pytest.mark.slow
def test_a_user_type_checks_every_import(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import cairn as dcp\n"
        "import cairn.default_planner\n"
        "from cairn import SavePlan, state_dict_saver\n"
        "from cairn._experimental.checkpointer import Checkpointer\n"
        "from cairn.filesystem import FileSystemWriter, _StoragePrefix\n"
        "from cairn.state_dict import get_model_state_dict\n"
        "plan: int = SavePlan([])\n"  # the only mistake: torch's types arrive
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        ROOT / ".mypy_cache",
        "job.py",
    ]
    done = subprocess.run(
        [str(word) for word in command],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert "job.py:7" in errors[0]
