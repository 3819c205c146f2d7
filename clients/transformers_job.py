"""Transformers' Trainer with FSDP2 and sharded checkpoints; see `trial`."""

from pathlib import Path
from typing import Any

import torch
import trial
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from fsdp_training import join_ranks, local_copies
from tiny_llama import TOKENS, tiny_llama
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from transformers import Trainer, TrainerCallback, TrainingArguments


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sentences of random tokens, equal in every run."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        chance = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 64, (TOKENS,), generator=chance)
        return {"input_ids": tokens, "labels": tokens}


class Snapshot(TrainerCallback):
    """Keeps the state at the start of the training: the loaded state."""

    def __init__(self, job: "TransformersJob") -> None:
        self._job = job

    def on_train_begin(self, arguments: Any, state: Any, control: Any, **parts: Any) -> None:
        self._job.loaded = self._job.state_of_trainer()


class TransformersJob:
    """A small Llama in training. The Trainer saves during the training and loads when the training starts."""

    arguments_class: type[TrainingArguments] = TrainingArguments

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._steps = 0  # the steps that the job was ordered to train
        self._resume: Path | None = None
        self._trainer: Trainer | None = None
        self.loaded: Any = None

    def _run(self, steps: int, save_to: Path | None) -> None:
        torch.manual_seed(self._seed)
        model = tiny_llama()
        arguments = self.arguments_class(
            output_dir=str(save_to or "unused"),
            use_cpu=True,
            max_steps=steps,
            per_device_train_batch_size=2,
            save_strategy="steps" if save_to else "no",
            save_steps=steps,
            report_to=[],
            disable_tqdm=True,
            learning_rate=0.01,
            lr_scheduler_type="constant",
            seed=7,
            fsdp="full_shard",
            fsdp_config={"version": 2, "state_dict_type": "SHARDED_STATE_DICT", "auto_wrap_policy": "NO_WRAP"},
        )
        # Accelerate uses DDP for ranks on CPUs, despite the plugin, and then never saves in shards.
        assert arguments.device.type == "cpu"  # makes the state that the next line changes
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        self._trainer = self.make_trainer(model, arguments, [Snapshot(self)])
        resume = str(self._resume) if self._resume else None
        self._trainer.train(resume_from_checkpoint=resume)

    def make_trainer(self, model: Any, arguments: Any, callbacks: list[TrainerCallback]) -> Trainer:
        return Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=callbacks)

    def train(self, steps: int) -> None:
        self._steps += steps

    def save(self, path: Path) -> None:
        self._run(self._steps, path)

    def load(self, path: Path) -> None:
        (self._resume,) = path.glob("checkpoint-*")
        self._steps = int(self._resume.name.partition("-")[2])
        self._run(self._steps + 1, None)

    def state(self) -> Any:
        if self._resume and self._resume.name == f"checkpoint-{self._steps}":
            return self.loaded
        if self._trainer is None or self._trainer.state.global_step != self._steps:
            self._run(self._steps, None)
        return self.state_of_trainer()

    def state_of_trainer(self) -> Any:
        assert self._trainer is not None
        model, optimizer = self._trainer.model_wrapped, self._trainer.optimizer.optimizer
        return local_copies({"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)})


def main() -> None:
    join_ranks()
    trial.run("transformers", TransformersJob)


if __name__ == "__main__":
    main()
