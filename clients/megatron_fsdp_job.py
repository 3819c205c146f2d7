"""Megatron-FSDP, in Megatron-core 0.19.2: training, and its sharded state on torch's `save` and `load`; see `trial`.

Megatron-FSDP shares out the rows of a layer, not of each parameter: the shards of a parameter have unequal sizes (6 and
5 rows, 5 and 2, 3 and 1 in this trial), and a rank may have none. The DTensors declare their chunks by
``__create_chunk_list__`` and ``__create_write_items__``. Megatron (``--ckpt-format fsdp_dtensor``) saves the state by
the `save` of ``torch.distributed.checkpoint`` with its FileSystemWriter, and loads with its planner; so does the trial.

CUDA's streams, events and memory have stand-ins that do nothing: all work is done at once, on the CPU, over gloo.
"""

import contextlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import trial
import without_cuda  # noqa: F401 - before Megatron
from fsdp_training import join_ranks, local_copies
from torch.distributed.tensor import DTensor
from training import loss_of, make_net


class Idle:
    """In place of a stream or an event."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_stream(self, _: Any) -> None: ...
    def wait_event(self, _: Any) -> None: ...
    def record_event(self, event: Any = None) -> Any:
        return event or Idle()

    def record(self, *_: Any) -> None: ...
    def wait(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


@contextlib.contextmanager
def on_stream(_: Any) -> Iterator[None]:
    yield


torch.cuda.Stream = torch.cuda.Event = Idle  # type: ignore[misc, assignment]
torch.cuda.stream = on_stream  # type: ignore[assignment]
torch.cuda.current_stream = lambda device=None: Idle()  # type: ignore[assignment, return-value]
torch.cuda.current_device = lambda: 0
torch.cuda.empty_cache = lambda: None
torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign, assignment]
torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore[method-assign, assignment]

kernels = types.ModuleType("megatron.core.transformer.moe.ops.paged_stash")  # need triton
kernels.__dict__["__getattr__"] = lambda name: None
sys.modules[kernels.__name__] = kernels

from megatron.core.distributed.fsdp.src.megatron_fsdp import (  # noqa: E402
    fully_shard_model,
    fully_shard_optimizer,
)


class MegatronFsdpJob:
    """A model in training."""

    def __init__(self, seed: int) -> None:
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("shards", "tp"))
        self._net = fully_shard_model(
            make_net(seed),
            device_mesh=mesh,
            dp_shard_dim="shards",
            tp_dim="tp",
            fsdp_unit_modules=[torch.nn.Linear],
            zero_dp_strategy=3,
            device=torch.device("cpu"),
            calculate_per_token_loss=True,  # gloo can't scale in a reduction
        )
        self._optimizer = fully_shard_optimizer(torch.optim.AdamW(self._net.parameters(), lr=0.01))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._optimizer.zero_grad()
            loss = loss_of(Seen(self._net), dist.get_rank())
            loss.backward()
            self._optimizer.step()

    def _state_dict(self) -> dict[str, Any]:
        model = self._net.state_dict()
        weights = [value._local_tensor for value in model.values() if isinstance(value, DTensor)]
        assert all(hasattr(weight, "__create_chunk_list__") for weight in weights), "no weight declares its chunks"
        return {"model": model, "optimizer": self._optimizer.state_dict()}

    def save(self, path: Path) -> None:
        dcp.save(self._state_dict(), storage_writer=dcp.FileSystemWriter(path))

    def load(self, path: Path) -> None:
        state = self._state_dict()
        dcp.load(state, storage_reader=dcp.FileSystemReader(path), planner=dcp.DefaultLoadPlanner())
        self._net.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def state(self) -> dict[str, Any]:
        return local_copies(self._state_dict())


class Seen:
    """The wrapped net, with the number of past steps as `loss_of` asks for it."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self.seen = net.module.seen

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._net(tokens)


def main() -> None:
    join_ranks()
    trial.run("megatron-core", MegatronFsdpJob)


if __name__ == "__main__":
    main()
