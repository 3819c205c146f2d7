"""cairn.nvrx.install(): the modules of NVRx, installed or not, and the version that Megatron-core asks for."""

import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import importlib, importlib.metadata, sys

def hide_nvrx():
    from importlib.machinery import PathFinder
    real = PathFinder.find_spec
    hidden = lambda name, path=None, target=None: None if "nvidia_res" in name else real(name, path, target)
    PathFinder.find_spec = hidden
    found = PathFinder.find_distributions
    PathFinder.find_distributions = lambda context=None: (
        it for it in found(context) if "nvidia" not in it.metadata["Name"]
    )

PLACES = {
    "core": ("AsyncCallsQueue", "AsyncRequest", "abort_nvrx_checkpoint"),
    "filesystem_async": ("FileSystemWriterAsync", "get_write_results_queue"),
    "state_dict_saver": (
        "CheckpointMetadataCache", "save_state_dict_async_finalize", "save_state_dict_async_plan",
        "verify_global_md_reuse", "init_checkpoint_metadata_cache", "get_metadata_caching_status",
    ),
    "cached_metadata_filesystem_reader": ("CachedMetadataFileSystemReader",),
}

def module(name):
    return importlib.import_module(f"nvidia_resiliency_ext.checkpointing.async_ckpt.{name}")

def check(ours):
    for name, names in PLACES.items():
        for attribute in names:
            value = getattr(module(name), attribute)
            assert value.__module__.startswith("cairn.nvrx") == ours, (name, attribute, value)
    assert hasattr(module("filesystem_async"), "_results_queue")
    assert module("filesystem_async")._results_queue is None

def version():
    import nvidia_resiliency_ext
    return nvidia_resiliency_ext.__version__, importlib.metadata.version("nvidia-resiliency-ext")
"""

PROGRAMS = {
    "without NVRx": """
        hide_nvrx()
        import cairn.nvrx
        cairn.nvrx.install()
        check(ours=True)
        assert version() == ("0.6.0", "0.6.0"), version()
        try:
            cairn.nvrx.LocalCheckpointManager
        except ImportError as error:
            assert "nvidia_resiliency_ext" in str(error)
        else:
            raise AssertionError("local checkpoints need NVRx")
        cairn.nvrx.uninstall()
        try:
            module("core")
        except ModuleNotFoundError:
            pass
        else:
            raise AssertionError("NVRx is there")
    """,
    "before NVRx": """
        import cairn.nvrx
        cairn.nvrx.install()
        check(ours=True)
        assert version() == ("0.6.0", "0.6.0"), version()
        assert module("core").PersistentAsyncCaller.__module__.startswith("nvidia"), "the rest of NVRx stays"
        cairn.nvrx.uninstall()
        assert importlib.metadata.version("nvidia-resiliency-ext") == "0.4.1"
        for name in ("core", "state_dict_saver"):
            assert module(name).__file__
    """,
    "after NVRx": """
        core = module("core")
        for name in PLACES:
            module(name)
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest as held
        import cairn.nvrx
        import torch.distributed.checkpoint as dcp
        cairn.nvrx.install()
        cairn.nvrx.install()
        check(ours=True)
        assert held.__module__.startswith("cairn.nvrx"), held
        assert dcp.save is cairn.save
        from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
        assert LocalCheckpointManager is cairn.nvrx.LocalCheckpointManager
        cairn.nvrx.uninstall()
        assert held.__module__.startswith("nvidia_resiliency_ext"), held
        assert core.AsyncCallsQueue.__module__.startswith("nvidia_resiliency_ext")
        assert dcp.save is not cairn.save
    """,
    "after a save of NVRx's": """
        queues = [module("filesystem_async")._get_write_results_queue()]
        import cairn.nvrx
        cairn.nvrx.install()
        check(ours=True)
        cairn.nvrx.uninstall()
        places = [
            (name, attribute)
            for name, loaded in list(sys.modules.items())
            for attribute, value in list(getattr(loaded, "__dict__", {}).items())
            if value is queues[0]
        ]
        assert places == [(module("filesystem_async").__name__, "_results_queue")], places
    """,
}


@pytest.mark.parametrize("order", PROGRAMS)
def test_install(tmp_path: Path, order: str) -> None:
    if order != "without NVRx":
        pytest.importorskip("nvidia_resiliency_ext.checkpointing.async_ckpt.core")
    body = "\n".join(line.removeprefix("    ") for line in PROGRAMS[order].splitlines())
    program = tmp_path / "program.py"
    program.write_text(f'{PRELUDE}\nif __name__ == "__main__":{body}')  # NVRx's queue spawns a process
    subprocess.run([sys.executable, program], check=True, timeout=120)
