"""A training run that survives: saves in the background, keeps three checkpoints and every tenth, stops at SIGTERM, and
resumes on any number of ranks with its optimizer, schedule, position in the data and random state.

torchrun --nproc-per-node 2 08_managed_run.py DIR --steps 60
"""

import argparse
import hashlib
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from cairn.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch import nn
from torch.distributed.fsdp import fully_shard

import cairn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("directory")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-seconds", type=float, default=0.0)
arguments = parser.parse_args()
dist.init_process_group("gloo")
torch.set_num_threads(1)  # the same order of additions: the same bits in every run
torch.manual_seed(dist.get_rank())
model: Any = nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.1), nn.ReLU(), nn.Linear(256, 64))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
data = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
position = 0  # in the data


def state() -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    rest = {"schedule": schedule.state_dict(), "position": position}
    return {"model": weights, "optimizer": moments, **rest, "random": cairn.random_states(otherwise="modulo")}


stops = (signal.SIGTERM, signal.SIGUSR1)  # Slurm sends SIGUSR1 ahead of the end: sbatch --signal=USR1@120
manager = cairn.CheckpointManager(
    arguments.directory, save_every=5, keep_last=3, keep_every=50, preemption_signals=stops
)
saved = state()
done = manager.restore(saved) or 0
if done:
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    position = saved["position"]
    cairn.set_random_states(saved["random"])
for step in range(done + 1, arguments.steps + 1):
    time.sleep(arguments.step_seconds)
    batch = data[torch.arange(position, position + 24) % len(data)].chunk(dist.get_world_size())[dist.get_rank()]
    position += 24
    loss = nn.functional.mse_loss(model(batch), torch.sin(3 * batch))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    manager.save(step, state, metrics={"loss": loss.item()})
    if manager.preempted:
        break
whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
digest = hashlib.sha256(b"".join(whole[name].numpy().tobytes() for name in sorted(whole))).hexdigest()[:16]
manager.close()
if dist.get_rank() == 0:
    report = manager.report()
    print(f"from step {done} to {step if done < arguments.steps else done}, model {digest}", flush=True)
    print(f"{report.good_share:.1%} of the time for training, {report.failures} failures", flush=True)
dist.barrier()
dist.destroy_process_group()
