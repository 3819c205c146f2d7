"""Megatron-core 0.19.2 with NVRx 0.7.0: ``dist_checkpointing`` with saves and loads on the engine; see `trial`.

The state is saved in five ways: synchronously, by Megatron's own queue and by NVRx's, each of which forks or keeps a
process. Two ranks save rows and load columns; at the end one rank loads what two have saved, through Cairn and by stock
torch. The trial then measures saves of 256 MiB with kept plans by NVRx's persistent queue: the call that plans, the
call that schedules, and the time until the checkpoint is complete.

The packages are wheels for Python 3.12, unpacked. Only kernels and calls that control CUDA have stand-ins: all modules
of ``dist_checkpointing`` and of ``nvidia_resiliency_ext.checkpointing`` are the packages' own.
"""

import itertools
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import trial
import without_cuda  # noqa: F401 - before Megatron
from fsdp_training import join_ranks

_empty = torch.empty


def empty_on_cpu(*sizes: Any, device: Any = None, **options: Any) -> torch.Tensor:
    """A worker makes an empty tensor on its CUDA device, to begin CUDA there."""
    return _empty(*sizes, device="cpu" if str(device).startswith("cuda") else device, **options)


torch.empty = empty_on_cpu

# The kernels of a kind of experts import triton, which torch's CPU build lacks. The state is of no model.
kernels = types.ModuleType("megatron.core.transformer.moe.ops.paged_stash")
kernels.__dict__["__getattr__"] = lambda name: None
sys.modules[kernels.__name__] = kernels

import nvidia_resiliency_ext  # noqa: E402
from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core.dist_checkpointing.strategies import async_utils  # noqa: E402
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy  # noqa: E402
from megatron_saves import sharded  # noqa: E402
from nvidia_resiliency_ext.checkpointing.async_ckpt import core  # noqa: E402

import cairn.nvrx  # noqa: E402

ROWS, COLUMNS = 6, 8
WAYS = ("sync", "mcore-fork", "mcore-persistent", "nvrx-fork", "nvrx-persistent")
MEASURED_SAVES = 4
MEASURED_TENSORS = 64  # of 4 MiB


def queue_of(way: str) -> Any:
    """A new queue, of Megatron or of NVRx; None for the synchronous way."""
    if way == "sync":
        return None
    module = async_utils if way.startswith("mcore") else core
    return module.AsyncCallsQueue(persistent=way.endswith("persistent"))


def begin_save(state: dict[str, Any], directory: Path, way: str, strategy: Any = None) -> Any:
    """Saves in the synchronous way; otherwise returns the planned request."""
    if dist.get_rank() == 0:
        directory.mkdir(parents=True)
    dist.barrier()
    name = way.partition("-")[0]
    return dist_checkpointing.save(
        state, str(directory), strategy, async_sharded_save=way != "sync", async_strategy=name
    )


class MegatronJob:
    """A state that changes as if trained; each rank has the whole state."""

    def __init__(self, seed: int) -> None:
        self._matrix = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + 1000 * seed
        self._vector = torch.full((3,), float(seed))
        self._own = {"seed": dist.get_rank() + 10 * seed}
        self._common = {"iteration": 0, "args": {"lr": 0.5, "name": "first"}}

    def train(self, steps: int) -> None:
        self._matrix += steps
        self._vector *= 1 + steps
        self._own["seed"] += steps
        self._common["iteration"] += steps

    def save(self, path: Path) -> None:
        for way in WAYS:
            state = {**sharded(self._matrix, 0, self._vector, self._own), **self._common}
            request, queue = begin_save(state, path / way, way), queue_of(way)
            if queue is not None:
                queue.schedule_async_request(request)
                queue.maybe_finalize_async_calls(blocking=True)
                queue.close()

    def load(self, path: Path) -> None:
        states = []
        for way in WAYS:
            target = sharded(torch.zeros(ROWS, COLUMNS), 1, torch.zeros(3), None)
            loaded = dist_checkpointing.load(target, str(path / way))
            part = loaded["model"]["w"].contiguous()
            columns = [torch.empty_like(part) for _ in range(dist.get_world_size())]
            dist.all_gather(columns, part)
            self._matrix, self._vector = torch.cat(columns, 1), loaded["model"]["b"]
            self._own, self._common = loaded["rng"], {key: loaded[key] for key in self._common}
            states.append(self.state())
        for state in states[1:]:
            trial.assert_same(state, states[0], "saved in another way")

    def state(self) -> dict[str, Any]:
        return {
            "matrix": self._matrix.clone(),
            "vector": self._vector.clone(),
            "own": dict(self._own),
            "common": dict(self._common),
        }


def measure(folder: Path) -> dict[str, float]:
    """Seconds of the last of some saves of 256 MiB by each rank's NVRx queue, with kept plans."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    queue = queue_of("nvrx-persistent")
    strategy = TorchDistSaveShardedStrategy(cached_metadata=True)
    tensors = [torch.full((1 << 20,), float(number)) for number in range(MEASURED_TENSORS // ranks)]
    for step in range(MEASURED_SAVES):
        state = {
            f"w{number}": dist_checkpointing.ShardedTensor.from_rank_offsets(f"w{number}", tensor, (0, rank, ranks))
            for number, tensor in enumerate(tensors)
        }
        times = [time.perf_counter()]
        request = begin_save(state, folder / f"measured-{step}", "nvrx-persistent", strategy)
        times.append(time.perf_counter())
        queue.schedule_async_request(request)
        times.append(time.perf_counter())
        queue.maybe_finalize_async_calls(blocking=True)
        times.append(time.perf_counter())
        dist.barrier()
    queue.close()
    plan, schedule, finish = (after - before for before, after in itertools.pairwise(times))
    return {"plan of 256 MiB": plan, "schedule": schedule, "finish": finish}


def switch(to_cairn: bool) -> None:
    """The line that a client's user adds."""
    if to_cairn:
        cairn.nvrx.install()
    else:
        cairn.nvrx.uninstall()


def load_on_one_rank(folder: Path) -> None:
    """Two ranks have saved; one loads, through Cairn and then by stock torch."""
    rows = sharded(torch.zeros(ROWS, COLUMNS), 1, torch.zeros(3), None)
    job = MegatronJob(0)
    job.train(2)
    for to_cairn in (True, False):
        switch(to_cairn)
        for way in WAYS:
            target = {**rows, "rng": [dist_checkpointing.ShardedObject("rng", None, (2,), (of,)) for of in range(2)]}
            target["model"] = sharded(torch.zeros(ROWS, COLUMNS), 1, torch.zeros(3), None)["model"]
            loaded = dist_checkpointing.load(target, str(folder / way))
            wanted = job.state()
            trial.assert_same(loaded["model"], {"w": wanted["matrix"], "b": wanted["vector"]}, way)
            assert loaded["rng"] == [{"seed": 2}, {"seed": 3}], loaded["rng"]
            assert loaded["iteration"] == 2


def end() -> None:
    """Ends the workers, and runs load_on_one_rank() in a process of its own."""
    for worker in multiprocessing.active_children():  # of stock queues, which leave workers behind
        worker.terminate()
    if dist.get_rank() != 0:
        return
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
    group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    left = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    subprocess.run([sys.executable, __file__, sys.argv[1], "alone"], env={**left, **group}, check=True, timeout=300)


def main() -> None:
    join_ranks()
    if "alone" in sys.argv:
        load_on_one_rank(Path(sys.argv[1]) / "ours")
        return
    assert nvidia_resiliency_ext.__version__ == "0.7.0"
    trial.run("megatron-core", MegatronJob, switch=switch, measure=measure, at_end=end)


if __name__ == "__main__":
    main()
