"""A run of Accelerate by code of docs/clients.md; see `managed_program`."""

import os
import textwrap
from typing import Any

import managed_program
import torch
from accelerate import Accelerator
from managed_program import Ended, Play
from torch import nn
from torch.utils.data import DataLoader

import cairn.accelerate


def play(play: Play) -> Ended:
    accelerator = Accelerator(cpu=True)
    accelerator.free_memory()
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule: Any = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 8])
    data = torch.randn(play.steps * 4 * accelerator.num_processes, 8, generator=torch.Generator().manual_seed(1))
    names = {"cairn": cairn, "accelerator": accelerator, "model": model, "optimizer": optimizer, "schedule": schedule}
    names["loader"] = DataLoader(data, batch_size=4)  # type: ignore[arg-type]
    trained = 0

    def train(batch: Any) -> torch.Tensor:
        nonlocal trained
        trained += 1
        managed_program.stop_at(names.get("done", 0) + trained, play)
        loss: torch.Tensor = names["model"](batch).square().mean()
        names["optimizer"].zero_grad()
        accelerator.backward(loss)
        names["optimizer"].step()
        names["schedule"].step()
        return loss

    names["train"] = train
    if play.title:
        exec(code(play.title), names)
        return managed_program.ended(names["step"], names["manager"].preempted, names["model"])
    prepared = accelerator.prepare(model, optimizer, names["loader"], schedule)
    names |= dict(zip(("model", "optimizer", "loader", "schedule"), prepared, strict=True))
    for _, batch in zip(range(6), names["loader"], strict=False):
        train(batch)
    accelerator.save_state("old")
    return managed_program.ended(6, False, names["model"])


def code(title: str) -> str:
    """The code of the page; the lines for an old run stand for the line that restores."""
    run = managed_program.code_of("accelerate_run.py")
    restores = "    done = manager.restore(state) or 0\n"
    assert restores in run
    if title == "accelerate_run.py":
        return run
    return run.replace(restores, textwrap.indent(managed_program.code_of(title), "    "))


if __name__ == "__main__":
    managed_program.main(play)
