"""Accelerate with FSDP2 and sharded checkpoints, switched to Cairn by one line; run by torchrun, see `scenario`.

Accelerate uses functions and classes of DCP. After the scenario the functions alone are replaced by Cairn's, and then
the classes alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType, merge_fsdp_weights
from safetensors.torch import load_file
from scenario import MakeJob, play
from training import full_state, loss_of, make_net, make_optimizer
from witness import Witness

import cairn


class AccelerateJob:
    """A model in training."""

    def __init__(self, accelerator: Accelerator, seed: int) -> None:
        self._accelerator = accelerator
        # Without this call Accelerate would also save the models of earlier jobs.
        accelerator.free_memory()
        net = make_net(seed)
        self._net, self._optimizer = accelerator.prepare(net, make_optimizer(net))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._accelerator.backward(loss_of(self._net, self._accelerator.process_index))
            self._optimizer.step()

    def save(self, path: Path) -> None:
        self._accelerator.save_state(str(path))

    def load(self, path: Path) -> None:
        self._accelerator.load_state(str(path))

    def merge(self, path: Path, into: Path) -> dict[str, Any]:
        merge_fsdp_weights(str(path / "pytorch_model_fsdp_0"), str(into))
        return load_file(into / "model.safetensors")

    def state(self) -> dict[str, Any]:
        return full_state(self._net, self._optimizer.optimizer)


def make_accelerator() -> Accelerator:
    # Without this line Accelerate uses DDP for ranks on CPUs, despite the plugin, and never saves in shards.
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        state_dict_type="SHARDED_STATE_DICT",
        auto_wrap_policy="no_wrap",
        cpu_ram_efficient_loading=False,
    )
    return Accelerator(cpu=True, fsdp_plugin=plugin)


SWAPS = {"functions": ("save", "load"), "classes": ("FileSystemWriter", "FileSystemReader")}


@contextmanager
def swapped(names: tuple[str, ...]) -> Iterator[None]:
    """Replaces only the named objects by Cairn's, in the package where Accelerate looks up the names."""
    cairn.uninstall()
    stock = {name: getattr(dcp, name) for name in names}
    for name in names:
        setattr(dcp, name, getattr(cairn, name))
    yield
    for name, value in stock.items():
        setattr(dcp, name, value)
    cairn.install()


def swap(make_job: MakeJob, folder: Path, witness: Witness) -> None:
    for swapping, names in SWAPS.items():
        with swapped(names):
            job = make_job(5)
            job.load(folder / "ours")
            job.save(folder / swapping)
            witness.note(swapping, job.state())


def main() -> None:
    cairn.install()
    accelerator = make_accelerator()
    play(lambda seed: AccelerateJob(accelerator, seed), swap)


if __name__ == "__main__":
    main()
