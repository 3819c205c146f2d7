"""Managers of cairn.torch_checkpointing for tests, and the states that the managers save."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("torch_checkpointing.default_resharder", reason="torch_checkpointing 0.1.1 is not installed")

from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from cairn import torch_checkpointing as ours

SHARDED = ours.ItemSpec(resharder=DefaultResharder(), required=False)


def gather_on_cpu() -> None:
    """Lets torch_checkpointing gather its metadata without CUDA."""

    def gather(_: Any, data: Any, *__: Any, **___: Any) -> dict[int, Any]:
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, data)
        return dict(enumerate(gathered))

    ours.DefaultMetadataManager._all_gather_pickled_data = gather  # type: ignore[method-assign]


def config(files: Any = "ours", *, asynchronous: bool = True, **fields: Any) -> Any:
    """A configuration whose items "model" and "optimizer" have a resharder. The file systems of test machines may
    refuse the direct writes of torch_checkpointing."""
    save: Any = ours.AsyncCheckpointSaverConfig() if asynchronous else ours.SyncCheckpointSaverConfig()
    given = {
        "items": {"model": SHARDED, "optimizer": SHARDED},
        "save": save,
        "storage_config": LocalFileSystemStorageConfig(use_direct_io=False),
        "files": files,
    }
    return ours.CheckpointManager.Config(**(given | fields))


def manager(files: Any = "ours", *, asynchronous: bool = True, **fields: Any) -> Any:
    return config(files, asynchronous=asynchronous, **fields).build()


def state(value: float = 1.0) -> dict[str, Any]:
    """A training state with nested containers of all kinds."""
    torch.manual_seed(int(value))
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    return {
        "model": {name: tensor.detach() for name, tensor in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "step": int(value),
        "extra": {
            "pair": (int(value), torch.full((2,), value)),
            "texts": ["a", str(value)],
            "deep": {"tensor": [value]},
        },
    }


def save(manager: Any, directory: Any, payload: dict[str, Any]) -> None:
    """Saves, and waits."""
    future = manager.save(str(directory), payload)
    if future is not None:
        assert future.result() is None


class Items(ours.CheckpointBase):
    """Items without a resharder, by name."""

    layout: Any = None

    def __init__(self, **values: Any) -> None:
        self.values = values

    def get_items(self) -> dict[str, Any]:
        return {key: ours.CheckpointItem(value=value, layout=self.layout) for key, value in self.values.items()}

    def load_state_dict(self, state_dict: Any) -> None:
        self.values = dict(state_dict)
