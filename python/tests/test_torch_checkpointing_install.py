"""cairn.torch_checkpointing.install(): before and after the import of torch_checkpointing, in fresh processes."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch_checkpointing.default_resharder", reason="torch_checkpointing 0.1.1 is not installed")

PRELUDE = """
import importlib, sys, types

NAMES = {
    "builder": ("make_async_checkpoint_saver", "make_sync_checkpoint_saver"),
    "checkpoint_loader": ("CheckpointLoader",),
    "checkpoint_manager": ("CheckpointManager",),
    "checkpoint_reader": ("CheckpointReader",),
    "checkpoint_saver": ("AsyncCheckpointSaver", "SyncCheckpointSaver"),
}

def check(ours):
    package = importlib.import_module("torch_checkpointing")
    for module, names in NAMES.items():
        for name in names:
            for place in (package, importlib.import_module(f"torch_checkpointing.{module}")):
                value = getattr(place, name)
                assert value.__module__.startswith("cairn.") == ours, (place, name, value)

def program(code):
    module = types.ModuleType("program")
    sys.modules["program"] = module
    exec(code, vars(module))
    return module
"""

PROGRAMS = {
    "before the import": """
        import cairn.torch_checkpointing
        cairn.torch_checkpointing.install(files="ours")
        check(ours=True)
        from torch_checkpointing import CheckpointManager, ItemSpec
        import torch
        manager = CheckpointManager(CheckpointManager.Config(items={"step": ItemSpec()}))
        manager.save(sys.argv[1] + "/step-1", {"step": 1, "w": torch.ones(2)}).result()
        assert manager.load(sys.argv[1] + "/step-1") == {"step": 1}
        manager.close()
        import cairn
        assert cairn.latest(sys.argv[1]).endswith("step-1")
        assert cairn.report().other_calls == 0 and cairn.report().engine_calls == 2
    """,
    "after the import": """
        user = program("from torch_checkpointing import CheckpointManager as Kept, CheckpointLoader, wrap_future")
        theirs = user.Kept
        early = theirs(theirs.Config.with_sync_save())
        wrap = user.wrap_future
        import cairn.torch_checkpointing
        assert user.Kept is theirs
        mine = program("from cairn.torch_checkpointing import CheckpointManager").__dict__
        cairn.torch_checkpointing.install()
        sys.modules["user"] = user
        cairn.torch_checkpointing.install()
        assert user.Kept is cairn.torch_checkpointing.CheckpointManager and user.wrap_future is wrap
        assert isinstance(early, user.Kept) and issubclass(theirs, user.Kept)
        check(ours=True)
        import torch.distributed.checkpoint as dcp
        assert dcp.save.__module__.startswith("cairn.")
        cairn.torch_checkpointing.uninstall()
        assert user.Kept is theirs and user.CheckpointLoader.__module__ == "torch_checkpointing.checkpoint_loader"
        assert mine["CheckpointManager"] is cairn.torch_checkpointing.CheckpointManager
        assert dcp.save.__module__.startswith("torch.")
        check(ours=False)
        cairn.torch_checkpointing.uninstall()
    """,
    "settings": """
        import cairn.torch_checkpointing
        from cairn._settings import pickle_allowed
        cairn.torch_checkpointing.install(files="ours", allow_pickle=True)
        assert pickle_allowed(None)
        from torch_checkpointing import make_sync_checkpoint_saver
        assert make_sync_checkpoint_saver()._files == "ours"
        assert make_sync_checkpoint_saver(files="theirs")._files == "theirs"
        cairn.torch_checkpointing.uninstall()
        assert not pickle_allowed(None)
        for wrong in ({"files": "mine"}, {"allow_pickle": 1}):
            try:
                cairn.torch_checkpointing.install(**wrong)
            except cairn.InvalidArgument:
                check(ours=False)
            else:
                raise AssertionError(wrong)
    """,
    "without the package": """
        import cairn
        assert "torch_checkpointing" not in sys.modules and "cairn.torch_checkpointing" not in sys.modules

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name == "torch_checkpointing":
                    raise ModuleNotFoundError(name, name=name)

        sys.meta_path.insert(0, Refuse())
        try:
            import cairn.torch_checkpointing
        except ModuleNotFoundError as error:
            assert error.name == "torch_checkpointing" and "pip install" in str(error), error
        else:
            raise AssertionError("the package is missing")
    """,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_install_in_a_fresh_process(program: str, tmp_path: Path) -> None:
    text = PRELUDE + textwrap.dedent(PROGRAMS[program])
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path)], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
