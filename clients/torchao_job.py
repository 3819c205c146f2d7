"""torchao: FSDP2 over float8 training with the all-gather in float8, an optimizer of 8 or 4 bits, and weights in
formats of few bits; see `trial`.

The local tensors of the weights are ``WeightWithDynamicFloat8CastTensor``, those of large optimizer states
``OptimState8bit`` and ``OptimState4bit``: tensor subclasses without elements of their own. Small states stay plain. The
quantised weights are equal on all ranks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import trial
from fsdp_training import join_ranks
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.optim import AdamW4bit, AdamW8bit
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

SUBCLASSES = {
    "WeightWithDynamicFloat8CastTensor",
    "OptimState8bit",
    "OptimState4bit",
    "MXTensor",
    "NVFP4Tensor",
    "Int8Tensor",
    "Float8Tensor",
}


def compile_nothing(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """In place of ``torch.compile``: the optimizers' step would need a C++ compiler for a minute."""
    return (lambda given: given) if function is None else function


def quantised_weights(seed: int) -> dict[str, torch.Tensor]:
    weight = torch.randn(256, 128, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(seed))
    made = {"mx": MXTensor.to_mx(weight, torch.float8_e4m3fn, 32), "nvfp4": NVFP4Tensor.to_nvfp4(weight)}
    for name, config in (("int8", Int8WeightOnlyConfig()), ("float8", Float8WeightOnlyConfig())):
        linear = torch.nn.Linear(128, 256, bias=False, dtype=torch.bfloat16)
        linear.weight = torch.nn.Parameter(weight.clone())
        quantize_(linear, config)
        made[name] = linear.weight
    return made


class TorchaoJob:
    """Two models in training, one for each of the optimizers, beside quantised weights."""

    def __init__(self, seed: int) -> None:
        self._step = 0
        self._weights = quantised_weights(seed)
        self._nets: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        for kind in (AdamW8bit, AdamW4bit):
            torch.manual_seed(seed)
            net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 48))
            config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True)
            convert_to_float8_training(net, config=config)
            fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
            self._nets.append(net)
            self._optimizers.append(kind(net.parameters(), lr=0.01))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._step += 1
            chance = torch.Generator().manual_seed(1000 * dist.get_rank() + self._step)
            batch = torch.randn((16, 64), generator=chance)
            for net, optimizer in zip(self._nets, self._optimizers, strict=True):
                optimizer.zero_grad()
                net(batch).square().mean().backward()
                optimizer.step()

    def save(self, path: Path) -> None:
        dcp.save(self._state(), checkpoint_id=path)  # stock torch can't stage states of 8 bits for async_save

    def load(self, path: Path) -> None:
        state = self._state()
        dcp.load(state, checkpoint_id=path)
        for i, (net, optimizer) in enumerate(zip(self._nets, self._optimizers, strict=True)):
            set_state_dict(
                net, optimizer, model_state_dict=state[f"model {i}"], optim_state_dict=state[f"optimizer {i}"]
            )
        self._step = state["step"]
        self._weights = state["weights"]

    def state(self) -> dict[str, Any]:
        seen: set[str] = set()
        copies = _copies(self._state(), seen)
        assert seen >= SUBCLASSES, f"this rank holds only {sorted(seen)}"
        return copies

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"step": self._step, "weights": self._weights}
        for i, (net, optimizer) in enumerate(zip(self._nets, self._optimizers, strict=True)):
            state[f"model {i}"], state[f"optimizer {i}"] = get_state_dict(net, optimizer)
        return state


def _copies(state: Any, seen: set[str]) -> Any:
    """Returns `state` with each tensor as copies of the plain tensors that hold this rank's part; adds the names of the
    subclasses to `seen`."""
    if isinstance(state, DTensor):
        return _copies(state._local_tensor, seen)
    if type(state).__name__ in SUBCLASSES:
        seen.add(type(state).__name__)
        names, _ = state.__tensor_flatten__()
        return {name: _copies(getattr(state, name), seen) for name in names}
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copies(state[key], seen) for key in sorted(state)}
    return [_copies(entry, seen) for entry in state] if isinstance(state, list) else state


def main() -> None:
    join_ranks()
    torch.compile = compile_nothing  # type: ignore[assignment]
    trial.run("torchao", TorchaoJob)


if __name__ == "__main__":
    main()
