"""PEFT: a small Llama with LoRA, sharded by FSDP2, whose adapters alone are trained and saved; see `trial`.

The base is frozen, and its weights depend on no seed: as in practice, a job gets them from elsewhere. The checkpoint
has the adapters of `get_peft_model_state_dict` and the state of the optimizer, which trains the adapters alone. The
trial saves twice: by ``torch.distributed.checkpoint.save``, and by `async_save`.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import trial
from fsdp_training import join_ranks, local_copies
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from tiny_llama import TOKENS, tiny_llama
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SEED_OF_THE_BASE = 99


def make_model(seed: int) -> Any:
    torch.manual_seed(SEED_OF_THE_BASE)
    base = tiny_llama()
    torch.manual_seed(seed)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, adapters)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class PeftJob:
    """A model whose adapters are in training."""

    def __init__(self, seed: int) -> None:
        self._model = make_model(seed)
        trained = [weight for weight in self._model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=0.01)
        self._step = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._step += 1
            chance = torch.Generator().manual_seed(1000 * dist.get_rank() + self._step)
            tokens = torch.randint(0, 64, (2, TOKENS), generator=chance)
            self._optimizer.zero_grad()
            self._model(input_ids=tokens, labels=tokens).loss.backward()
            self._optimizer.step()

    def _state_dict(self) -> dict[str, Any]:
        adapters = get_peft_model_state_dict(self._model)
        assert adapters and all("lora_" in key for key in adapters), "more than the adapters"
        optimizer = get_optimizer_state_dict(self._model, self._optimizer)
        return {"adapters": adapters, "optimizer": optimizer, "step": self._step}

    def save(self, path: Path) -> None:
        dcp.save(self._state_dict(), checkpoint_id=path / "sync")
        dcp.async_save(self._state_dict(), checkpoint_id=path / "async").result()

    def load(self, path: Path) -> None:
        for folder in ("sync", "async"):
            state = self._state_dict()
            dcp.load(state, checkpoint_id=path / folder)
            set_peft_model_state_dict(self._model, state["adapters"])
            set_optimizer_state_dict(self._model, self._optimizer, state["optimizer"])
            self._step = state["step"]

    def state(self) -> dict[str, Any]:
        return local_copies({"model": dict(self._model.state_dict()), **self._state_dict()})


def main() -> None:
    join_ranks()
    trial.run("peft", PeftJob)


if __name__ == "__main__":
    main()
