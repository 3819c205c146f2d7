"""Trains a small character transformer on Python's own library, saves through Cairn, and resumes.

python train_characters.py --directory DIR --losses FILE [--steps N] [--save-every N] [--in-background]
torchrun --nproc-per-node 2 train_characters.py ...    # with FSDP2

Every save overwrites the checkpoint in DIR, and training waits for the save; with --in-background training continues
after the state is copied, and a separate process writes. Losses are written to FILE bit for bit, as hexadecimal floats.

Ranks of a job share the model and its optimizer, and all take the same batches: their losses equal the losses of one
process bit for bit, and any number of ranks can resume any job.
"""

import argparse
import os
import random
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cairn

CHARACTERS = 128  # ASCII
CONTEXT = 64
WIDTH = 256
LAYERS = 3
HEADS = 4
BATCH = 8


class Transformer(nn.Module):
    """Predicts each next character of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.characters(text) + self.positions.weight
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True))


def library_text() -> Tensor:
    """Returns the sources of Python's library: real text on every machine with Python."""
    folder = Path(os.__file__).parent
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:60])
    return torch.tensor([byte for byte in text if byte < CHARACTERS])


class Trainer:
    """The state and the steps of a run. Two trainers with equal states take equal steps."""

    def __init__(self, text: Tensor) -> None:
        torch.manual_seed(1)
        random.seed(1)
        self.text = text
        self.model = Transformer()
        if dist.is_initialized():
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for layer in self.model.layers.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=1000)
        self.step = 0

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint. It includes the random states, because batches and dropout are random."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": self.scheduler.state_dict(),
            "random": {"torch": torch.get_rng_state(), "python": random.getstate()},
            "step": self.step,
        }

    def save(self, directory: Path, *, in_background: bool) -> None:
        if in_background:
            process = cairn.AsyncCheckpointerType.PROCESS
            # The next save raises the error of a failed save; at the end Python logs the error.
            cairn.async_save(self.state(), checkpoint_id=directory, async_checkpointer_type=process)
        else:
            cairn.save(self.state(), checkpoint_id=directory)

    def load(self, directory: Path) -> None:
        state = self.state()
        cairn.load(state, checkpoint_id=directory)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"]["torch"])
        random.setstate(state["random"]["python"])
        self.step = state["step"]

    def take_step(self) -> float:
        starts = [random.randrange(len(self.text) - CONTEXT - 1) for _ in range(BATCH)]
        batch = torch.stack([self.text[start : start + CONTEXT + 1] for start in starts])
        logits = self.model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, CHARACTERS), batch[:, 1:].reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--losses", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--in-background", action="store_true", help="save by a process of its own")
    parser.add_argument("--die-at", type=int, help="kill this trainer when the call that saves this step has returned")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the order of additions, and with the order every bit, is always the same
    torch.use_deterministic_algorithms(True)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
        print(f"rank {dist.get_rank()} is process {os.getpid()}", flush=True)
    speaks = not dist.is_initialized() or dist.get_rank() == 0
    trainer = Trainer(library_text())
    if cairn.latest(arguments.directory, wait=60) is not None:  # a writer may have outlived its trainer
        trainer.load(arguments.directory)
        if speaks:
            print(f"resumed at step {trainer.step}", flush=True)
    with (arguments.losses if speaks else Path(os.devnull)).open("w") as losses:
        while trainer.step < arguments.steps:
            loss = trainer.take_step()
            print(trainer.step, loss.hex(), file=losses, flush=True)
            if trainer.step % arguments.save_every == 0:
                trainer.save(arguments.directory, in_background=arguments.in_background)
                if trainer.step == arguments.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if speaks:
                    print(f"saved step {trainer.step}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
