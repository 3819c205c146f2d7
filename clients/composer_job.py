"""Composer's Trainer with FSDP2 and sharded checkpoints; see `trial`.

Composer imports torchvision. The packages of torchvision on PyPI do not fit torch's CPU build. The trial uses nothing
of torchvision: empty modules replace the package.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class EmptyTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torchvision and all its submodules as modules in which every name is an empty class."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        within = fullname.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if within else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)

        def make(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__dict__["__getattr__"] = make
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__version__"] = "0"


sys.meta_path.append(EmptyTorchvision())
os.environ["FSDP_VERSION"] = "2"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import trial  # noqa: E402
from composer import Trainer  # noqa: E402
from composer.models import ComposerModel  # noqa: E402
from fsdp_training import join_ranks, local_copies  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict  # noqa: E402
from training import loss_of, make_net, make_optimizer  # noqa: E402


class Model(ComposerModel):
    """The net of `training`; the batch is only a number."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.net = make_net(seed)

    def forward(self, batch: Any) -> torch.Tensor:
        return loss_of(self.net, dist.get_rank())

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return outputs

    def fsdp_wrap_fn(self, module: torch.nn.Module) -> bool:
        return module is self.net.hidden


class ComposerJob:
    """A model in training."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._trainer = self._make_trainer(None)

    def _make_trainer(self, load_path: Path | None) -> Trainer:
        model = Model(self._seed)
        return Trainer(
            model=model,
            optimizers=make_optimizer(model),
            train_dataloader=[torch.zeros(1)],
            max_duration="1000ba",
            device_train_microbatch_size=1,
            device="cpu",
            precision="fp32",
            progress_bar=False,
            load_path=str(load_path) if load_path else None,
            parallelism_config={"fsdp": {"state_dict_type": "sharded"}},
            run_name="trial",
            seed=1,
        )

    def train(self, steps: int) -> None:
        self._trainer.fit(duration=f"{steps}ba")

    def save(self, path: Path) -> None:
        self._trainer.save_checkpoint(str(path / "{epoch}"))

    def load(self, path: Path) -> None:
        self._trainer.close()
        checkpoint = next(found.parent for found in sorted(path.rglob(".metadata")))
        self._trainer = self._make_trainer(checkpoint)

    def state(self) -> Any:
        model, (optimizer,) = self._trainer.state.model, self._trainer.state.optimizers
        state = local_copies({"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)})
        return {**state, "batches": int(self._trainer.state.timestamp.batch)}


def main() -> None:
    join_ranks()
    trial.run("mosaicml", ComposerJob)


if __name__ == "__main__":
    main()
