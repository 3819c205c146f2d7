"""Trains on many ranks, saves, and resumes with a different number of ranks and a different layout of the model.

torchrun --nproc-per-node 4 03_train_on_many_ranks.py DIR --layout fsdp --steps 6 --save-at 3
torchrun --nproc-per-node 3 03_train_on_many_ranks.py DIR --layout fsdp --steps 6

The layouts: ddp (each rank has the whole model), fsdp (FSDP2: each rank has a part), hsdp (two copies, both split),
tensor (tensor parallel in pairs, FSDP2 across the pairs). The code that saves and loads is the same for all layouts,
and so is the saved state.
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cairn.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import cairn as dcp

WIDTH = 96
BATCH = 24  # of all ranks in sum; 2, 3 and 4 ranks share the batch evenly


class Block(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Job:
    """A model over all ranks, and its optimizer. This rank trains on share `part` of `parts` of each batch."""

    def __init__(self, layout: str) -> None:
        torch.manual_seed(1)
        self.model: nn.Module = nn.Sequential(*(Block() for _ in range(3)))
        self.part, self.parts = dist.get_rank(), dist.get_world_size()
        if layout == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.model)
        elif layout == "fsdp":
            self.split(init_device_mesh("cpu", (self.parts,)))
        elif layout == "hsdp":
            self.split(init_device_mesh("cpu", (2, self.parts // 2), mesh_dim_names=("copy", "shard")))
        else:
            mesh = init_device_mesh("cpu", (self.parts // 2, 2), mesh_dim_names=("data", "tensor"))
            for block in self.model:
                parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            self.split(mesh["data"])
            self.part, self.parts = mesh["data"].get_local_rank(), mesh["data"].size()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step = 0

    def split(self, mesh: Any) -> None:
        for block in self.model:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def save(self, directory: Path) -> None:
        dcp.save(self.state(), checkpoint_id=directory)

    def load(self, directory: Path) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=directory)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]

    def take_step(self) -> float:
        """Takes a step and returns the loss over the whole batch. The batch depends only on the step."""
        self.step += 1
        batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(self.step))
        mine = batch.chunk(self.parts)[self.part]
        loss = nn.functional.mse_loss(self.model(mine), torch.sin(3 * mine))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def fingerprint(self) -> str:
        """Returns a digest of every bit of the model, gathered from all ranks."""
        whole = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True))
        digest = hashlib.sha256()
        for name in sorted(whole):
            digest.update(whole[name].numpy().tobytes())
        return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layout", choices=["ddp", "fsdp", "hsdp", "tensor"], default="fsdp")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--save-at", type=int, help="save after this step, then go on")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)  # the same order of additions: the same bits in every run
    say = print if dist.get_rank() == 0 else lambda *_, **__: None
    job = Job(arguments.layout)
    if (arguments.directory / ".metadata").exists():
        job.load(arguments.directory)
        say(f"resumed at step {job.step}, model {job.fingerprint()}", flush=True)
    while job.step < arguments.steps:
        loss = job.take_step()
        say(f"step {job.step}, loss {loss:.9f}", flush=True)
        if job.step == arguments.save_at:
            job.save(arguments.directory)
            say(f"saved step {job.step}, model {job.fingerprint()}", flush=True)
    dist.barrier()  # no rank leaves early, and gloo's threads release their tensors before Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
