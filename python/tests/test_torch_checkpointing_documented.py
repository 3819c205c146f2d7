"""What the documentation of torch_checkpointing 0.1.1 shows, in the words of this project: a training loop that resumes
(tutorials), items of every kind (configuring_checkpoints), a storage and a resharder of the caller (storage,
extensibility). Each program imports the package as its documentation does, and is switched by install()."""

import io
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpointing_managers import config, ours, save
from same import assert_same
from torch_checkpointing.checkpoint_layout import (
    JsonSerialization,
    LayoutInfo,
    RawSerialization,
    SafetensorsSerialization,
    TorchSerialization,
)
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.storage.base_storage import ReadArgs, Storage, StorageConfig

import cairn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

TRAINING_LOOP = """
    import os, signal, sys
    from pathlib import Path

    import torch
    from torch_checkpointing import CheckpointManager
    from cairn import torch_checkpointing

    def newest(root):
        steps = [int(folder.name.removeprefix("step_")) for folder in root.glob("step_*")]
        return root / f"step_{max(steps)}" if steps else None

    def main(root, files, killed_at):
        torch_checkpointing.install(files=files)
        from torch_checkpointing import CheckpointManager

        torch.manual_seed(7)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        manager = CheckpointManager(CheckpointManager.Config.with_async_save())
        first = 0
        if (found := newest(root)) is not None:
            restored = manager.load(str(found), into={"model": model.state_dict(), "optimizer": None, "step": 0})
            optimizer.load_state_dict(restored["optimizer"])
            first = int(restored["step"]) + 1
        print("from", first)
        for step in range(first, 30):
            torch.manual_seed(step)
            model(torch.randn(32, 8)).square().mean().backward()
            with manager.lock():
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 5 == 0:
                payload = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                manager.save(str(root / f"step_{step}"), payload)
            if step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
        manager.close()
        torch.save(model.state_dict(), root / "end.pt")

    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
"""


@pytest.mark.parametrize("files", ["ours", "theirs"])
def test_the_training_loop_resumes_bit_for_bit(files: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(TRAINING_LOOP))

    def train(root: Path, killed_at: int) -> subprocess.CompletedProcess[str]:
        root.mkdir(exist_ok=True)
        arguments = [sys.executable, str(program), str(root), files, str(killed_at)]
        return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=240)

    whole = train(tmp_path / "whole", -1)
    assert whole.returncode == 0, whole.stderr[-4000:]
    assert train(tmp_path / "killed", 17).returncode == -signal.SIGKILL
    resumed = train(tmp_path / "killed", -1)
    assert resumed.returncode == 0, resumed.stderr[-4000:]
    # The save of step 15 may still be under way in the writer process when the second trainer looks.
    assert resumed.stdout.split() in (["from", "16"], ["from", "11"])
    assert_same(torch.load(tmp_path / "killed/end.pt"), torch.load(tmp_path / "whole/end.pt"))


class LoaderResharder(DefaultResharder):
    """Of a data loader's progress: moves it by one."""

    def should_reshard(self, *_: Any, **__: Any) -> bool:
        return True

    def load(
        self,
        source_path: Path,
        item_key: str,
        target_metadata: Any,
        source_metadata: Any,
        target: Any,
        storage: Storage,
    ) -> Any:
        file = source_metadata.get_file_path(0, source_path, item_key)
        stored = torch.load(io.BytesIO(storage.read(file)), weights_only=True)
        target["position"].copy_(stored["position"] + 1)
        return [("position",)]


def payload(value: int) -> dict[str, Any]:
    torch.manual_seed(value)
    return {
        "model": {"layer": {"weight": torch.randn(4, 3)}, "bias": torch.randn(3)},
        "optimizer": {"state": {0: {"exp_avg": torch.randn(4, 3)}}, "lr": 0.1 * value},
        "misc_state": {"step": value, "names": ["a", "b"]},
        "tokenizer": f"tokens {value}".encode(),
        "weights": {"ema": torch.randn(5)},
    }


def items(misc_state: str) -> dict[str, Any]:
    weights = SafetensorsSerialization({"format_version": "1"})
    return {
        "model": ours.ItemSpec(resharder=DefaultResharder()),
        "optimizer": ours.ItemSpec(layout=LayoutInfo("optimizer_{rank}.pt", TorchSerialization())),
        "misc_state": ours.ItemSpec(requires_copy=False, layout=LayoutInfo(misc_state, JsonSerialization())),
        "tokenizer": ours.ItemSpec(layout=LayoutInfo("tokenizer_{rank}.bin", RawSerialization())),
        "weights": ours.ItemSpec(layout=LayoutInfo("weights_{rank}.safetensors", weights)),
    }


@pytest.mark.parametrize(
    ("misc_state", "engine"), [("misc_state_{rank}.json", True), ("rank_{rank}/misc_state.json", False)]
)
def test_items_of_every_kind(misc_state: str, engine: bool, tmp_path: Path, fresh_report: None) -> None:
    given = config("theirs", items=items(misc_state), asynchronous=engine)
    manager, directory = ours.CheckpointManager(given), tmp_path / "step_3"
    save(manager, directory, payload(3))
    into = payload(1)
    loaded = manager.load(str(directory), into=into, strict=True)
    manager.close()
    assert_same(loaded, payload(3))
    assert loaded["model"]["bias"] is into["model"]["bias"]
    files = {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}
    assert files - {".cairn-record"} == {
        *("model_0.pt", "optimizer_0.pt", "tokenizer_0.bin", "weights_0.safetensors", "metadata.pkl"),
        misc_state.format(rank=0),
    }
    assert {count.engine for count in cairn.report().calls if count.call.endswith("save")} == {engine}


def test_a_resharder_of_the_caller(tmp_path: Path) -> None:
    loader = {"dataloader": ours.ItemSpec(requires_copy=False, resharder=LoaderResharder())}
    manager = ours.CheckpointManager(config("theirs", items=loader))
    save(manager, tmp_path / "step", {"dataloader": {"position": torch.tensor(12)}})
    loaded = manager.load(str(tmp_path / "step"), into={"dataloader": {"position": torch.tensor(0)}})
    manager.close()
    assert loaded["dataloader"]["position"] == 13


FILES: dict[str, bytes] = {}


class StreamIntoMemory(io.BytesIO):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.into = name

    def close(self) -> None:
        if not self.closed:
            FILES[self.into] = self.getvalue()
        super().close()


class MemoryStorage(Storage):
    def stream_read(self, path: Path, read_args: ReadArgs | None = None) -> Any:
        return io.BytesIO(FILES[str(path)])

    def stream_write(self, path: Path) -> Any:
        return StreamIntoMemory(str(path))

    def write(self, path: Path, data: Any) -> None:
        FILES[str(path)] = bytes(data)

    def delete(self, path: Path) -> None:
        FILES.pop(str(path), None)

    def mkdir(self, path: Path, recursive: bool = True) -> None:
        pass

    def rmdir(self, path: Path) -> None:
        for name in [name for name in FILES if name.startswith(f"{path}/")]:
            del FILES[name]

    def rename(self, src_path: Path, dst_path: Path, *_: Any, **__: Any) -> None:
        for name in [name for name in FILES if name.startswith(f"{src_path}/")]:
            FILES[str(dst_path) + name.removeprefix(str(src_path))] = FILES.pop(name)

    def ls(self, path: Path) -> list[str]:
        return sorted({name.removeprefix(f"{path}/").split("/")[0] for name in FILES if name.startswith(f"{path}/")})

    def exists(self, path: Path) -> bool:
        return str(path) in FILES or self.isdir(path)

    def getsize(self, path: Path) -> int:
        return len(FILES[str(path)])

    def isdir(self, path: Path) -> bool:
        return any(name.startswith(f"{path}/") for name in FILES)

    def remap_path(self, path: Path) -> str:
        return str(path)


class MemoryStorageConfig(StorageConfig):
    def create_storage(self) -> Storage:
        return MemoryStorage()


def test_a_storage_of_the_caller(fresh_report: None) -> None:
    config = ours.CheckpointManager.Config(save=ours.SyncCheckpointSaverConfig(), storage_config=MemoryStorageConfig())
    manager = ours.CheckpointManager(config)
    saved = {"model": {"w": torch.arange(4.0)}, "step": 3}
    manager.save("memory/step", saved)
    loaded = manager.load("memory/step", into={"model": {"w": torch.zeros(4)}, "step": 0})
    manager.close()
    assert_same(loaded, saved)
    assert "memory/step/model_0.pt" in FILES
    assert {count.engine for count in cairn.report().calls} == {False}
