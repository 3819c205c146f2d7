"""A run of Lightning by code of docs/clients.md; see `managed_program`."""

import os
from typing import Any

import managed_program
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import ModelParallelStrategy
from managed_program import Ended, Play
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader

import cairn.lightning


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy) and not isinstance(self.net, FSDPModule):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.net(batch).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 8])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self) -> Any:
        return DataLoader(torch.ones(20, 8), batch_size=4)

    def val_dataloader(self) -> Any:
        return DataLoader(torch.ones(4, 8), batch_size=4)


class Stop(Callback):
    def __init__(self, play: Play) -> None:
        self._play = play

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        managed_program.stop_at(trainer.global_step + 1, self._play)


def settings(strategy: str) -> dict[str, Any]:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    sharded = strategy == "sharded"
    return {
        "accelerator": "cpu",
        "devices": ranks,
        "strategy": ModelParallelStrategy(ranks, 1) if sharded else strategy,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
    }


def play(play: Play) -> Ended:
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    module = Module()
    chosen = settings(play.strategy)
    if not play.title:
        trainer = Trainer(max_steps=6, enable_checkpointing=False, **chosen)
        trainer.fit(module)
        trainer.save_checkpoint("old.ckpt")
        return managed_program.ended(6, False, module)

    def make_trainer(*, callbacks: list[Any], **rest: Any) -> Trainer:
        return Trainer(callbacks=[*callbacks, Stop(play)], **rest)

    names = {"cairn": cairn, "Trainer": make_trainer, "module": module, "settings": chosen, "steps": play.steps}
    managed_program.run_code(play.title, names)
    return managed_program.ended(names["trainer"].global_step, names["checkpoints"].preempted, module)


def validate_best(play: Play) -> tuple[float, float]:
    """Returns the loss that the callback has stored with its best checkpoint, and that of a new module with it."""
    names: dict[str, Any] = {"cairn": cairn, "Trainer": Trainer, "module": Module(), "steps": play.steps}
    names["settings"] = settings(play.strategy) | {"val_check_interval": 4, "check_val_every_n_epoch": None}
    managed_program.run_code("lightning_run.py", names)
    names["module"] = Module()
    managed_program.run_code("lightning_best.py", names)
    stored = names["checkpoints"].manager.metrics(names["best"])["val_loss"]
    return stored, float(names["trainer"].callback_metrics["val_loss"])


def stop_at_validation(play: Play) -> tuple[int, int]:
    """Returns the last step, and the number of validations. A validation is due at each fourth step."""
    validated = []

    class Counted(Module):
        def validation_step(self, batch: Any, index: int) -> None:
            validated.append(self.trainer.global_step)

    def make_trainer(*, callbacks: list[Any], **rest: Any) -> Trainer:
        return Trainer(callbacks=[*callbacks, Stop(play)], num_sanity_val_steps=0, **rest)

    names: dict[str, Any] = {"cairn": cairn, "Trainer": make_trainer, "module": Counted(), "steps": play.steps}
    names["settings"] = settings(play.strategy) | {"val_check_interval": 4, "check_val_every_n_epoch": None}
    managed_program.run_code(play.title, names)
    assert names["checkpoints"].preempted
    return names["trainer"].global_step, len(validated)


if __name__ == "__main__":
    managed_program.main(play)
