"""Trains while a separate process writes the checkpoints, and resumes from the newest checkpoint.

python 04_save_in_the_background.py DIR --steps 8 --save-every 2
python 04_save_in_the_background.py DIR --steps 12 --save-every 2    # resumes at step 8

Even the copy is made in the background. Meanwhile the next step's forward and backward run, which only read the
parameters, and the optimizer waits for the copy. A copied state becomes a checkpoint, even if the trainer is killed.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from cairn.state_dict import get_state_dict, set_state_dict
from torch import nn

import cairn as dcp
from cairn.staging import DefaultStager, StagingOptions

WIDTH = 512
BATCH = 32


class Trainer:
    """A model and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        dcp.staging_fence(self.optimizer)  # optimizer.step() waits until the saved tensors are copied
        self.step = 0

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load(self, directory: str) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=directory)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]

    def take_step(self) -> float:
        batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(self.step + 1))
        loss = nn.functional.mse_loss(self.model(batch), torch.sin(3 * batch))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--save-every", type=int, default=2)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)

    trainer = Trainer()
    # The writer of a killed trainer may still be about to finish its checkpoint.
    newest = dcp.latest(arguments.directory, wait=60)
    if newest is not None:
        trainer.load(newest)
        print(f"resumed at step {trainer.step}")

    dcp.prepare_async_saves(trainer.state(), dcp.AsyncCheckpointerType.PROCESS)  # optional: the first save is quicker
    stager = DefaultStager(StagingOptions(use_async_staging=True))
    save: Any = None
    while trainer.step < arguments.steps:
        loss = trainer.take_step()
        told = "" if save is None else f", the last save is {save.upload_completion.progress().phase}"
        print(f"step {trainer.step}, loss {loss:.6f}{told}")
        if trainer.step % arguments.save_every == 0:
            save = dcp.async_save(
                trainer.state(),
                checkpoint_id=arguments.directory / f"step-{trainer.step}",
                async_checkpointer_type=dcp.AsyncCheckpointerType.PROCESS,
                async_stager=stager,
            )
    stager.close()
    if save is not None:
        save.upload_completion.result()  # raises the save's error; otherwise the interpreter waits and logs the error
        print(f"{save.upload_completion.progress().bytes_written} bytes of step {trainer.step} are written")


if __name__ == "__main__":
    main()
