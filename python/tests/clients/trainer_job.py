"""Lightning's Trainer with FSDP2, switched to Cairn by one line; run by torchrun.

``trainer_job.py start|reshard FOLDER`` runs the phases of `scenario`, but the Trainer trains, and its ModelCheckpoint
saves after each step to step=N.ckpt. A repeated step overwrites the file. A link names the last checkpoint.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.load import _load_distributed_checkpoint
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader
from training import full_state, loss_of, make_net, make_optimizer
from witness import Witness

import cairn


class Module(LightningModule):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.net = make_net(seed)

    def configure_model(self) -> None:
        if not isinstance(self.net, FSDPModule):
            for part in (self.net.hidden, self.net):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return make_optimizer(self.net)

    def training_step(self, batch: object) -> torch.Tensor:
        return loss_of(self.net, self.global_rank)

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(range(100))  # type: ignore[arg-type]


def state_of(trainer: Trainer) -> dict[str, Any]:
    return {**full_state(trainer.lightning_module, trainer.optimizers[0]), "step": trainer.global_step}


class Notes(Callback):
    """Notes the state after step `at`, or before the first step."""

    def __init__(self, witness: Witness, phase: str, at: int) -> None:
        self._witness, self._phase, self._at = witness, phase, at

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._note_if_due(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        self._note_if_due(trainer)

    def _note_if_due(self, trainer: Trainer) -> None:
        if trainer.global_step == self._at:
            self._witness.note(self._phase, state_of(trainer))


def fit(folder: Path, seed: int, max_steps: int, checkpoint: Path | None = None, *callbacks: Callback) -> Trainer:
    """Runs a Trainer that saves to `folder`."""
    ranks = int(os.environ["WORLD_SIZE"])
    each_step = ModelCheckpoint(
        folder,
        "{step}",
        every_n_train_steps=1,
        save_top_k=-1,
        save_last="link",
        enable_version_counter=False,
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1),
        max_steps=max_steps,
        callbacks=[each_step, *callbacks],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(seed), ckpt_path=checkpoint)
    return trainer


def start(folder: Path, witness: Witness) -> None:
    ours, stock = folder / "ours", folder / "stock"
    trainer = fit(ours, 0, 5, None, Notes(witness, "saved", 3))
    witness.note("uninterrupted", state_of(trainer))
    trainer = fit(ours, 1, 5, ours / "step=3.ckpt", Notes(witness, "resumed", 3))
    witness.note("continued", state_of(trainer))
    merged = _load_distributed_checkpoint(ours / "step=3.ckpt") if trainer.global_rank == 0 else {}
    witness.note("merged", merged)

    # Both runs below start at their last step: they train nothing.
    cairn.uninstall()
    trainer = fit(stock, 2, 3, ours / "step=3.ckpt")
    trainer.save_checkpoint(stock / "step=3.ckpt")
    witness.note("without", state_of(trainer))
    cairn.install()
    trainer = fit(stock, 3, 3, stock / "step=3.ckpt")
    trainer.save_checkpoint(stock / "step=3.ckpt")
    witness.note("switched", state_of(trainer))


def reshard(folder: Path, witness: Witness) -> None:
    trainer = fit(folder / "stock", 4, 5, folder / "ours/last.ckpt")
    trainer.save_checkpoint(folder / "stock/step=3.ckpt")
    witness.note("resharded", state_of(trainer))


def main() -> None:
    cairn.install()
    folder = Path(sys.argv[2])
    witness = Witness(folder)
    {"start": start, "reshard": reshard}[sys.argv[1]](folder, witness)
    witness.leave()


if __name__ == "__main__":
    main()
