"""A run of the Trainer of Transformers by code of docs/clients.md; see `managed_program`."""

from typing import Any

import managed_program
import torch
from managed_program import Ended, Play
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import cairn.transformers

TOKENS = 16


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 64, (TOKENS,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Stop(TrainerCallback):
    def __init__(self, play: Play) -> None:
        self._play = play

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        managed_program.stop_at(state.global_step + 1, self._play)


def play(play: Play) -> Ended:
    settings: dict[str, Any] = {"output_dir": "out", "use_cpu": True, "per_device_train_batch_size": 4, "report_to": []}
    settings |= {"disable_tqdm": True, "learning_rate": 0.01, "logging_steps": 2}
    settings |= {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 8}
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": TOKENS}
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads, attention_dropout=0.1))
    if not play.title:
        arguments = TrainingArguments(max_steps=7, save_strategy="steps", save_steps=6, **settings)
        Trainer(model, arguments, train_dataset=Rows()).train()
        return managed_program.ended(6, False, model)

    def make_trainer(*arguments: Any, callbacks: list[Any], **options: Any) -> Trainer:
        return Trainer(*arguments, callbacks=[*callbacks, Stop(play)], **options)

    names: dict[str, Any] = {"cairn": cairn, "Trainer": make_trainer, "TrainingArguments": TrainingArguments}
    names |= {"model": model, "data": Rows(), "settings": settings, "steps": play.steps}
    exec(code(play.title), names)
    return managed_program.ended(names["trainer"].state.global_step, names["checkpoints"].preempted, model)


def code(title: str) -> str:
    """The code of the page; the line for an old run stands for the line that trains."""
    run = managed_program.code_of("transformers_run.py")
    trains = "checkpoints.train(trainer)\n"
    assert trains in run
    return run if title == "transformers_run.py" else run.replace(trains, managed_program.code_of(title))


if __name__ == "__main__":
    managed_program.main(play)
