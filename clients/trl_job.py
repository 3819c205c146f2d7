"""trl's SFTTrainer with FSDP2 and sharded checkpoints; see `trial`."""

from typing import Any

import trial
from datasets import Dataset
from fsdp_training import join_ranks
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback
from transformers_job import Rows, TransformersJob
from trl import SFTConfig, SFTTrainer


def tokenizer() -> PreTrainedTokenizerFast:
    words = {**{str(number): number for number in range(62)}, "<pad>": 62, "<eos>": 63}
    model = Tokenizer(WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="<eos>")


class TrlJob(TransformersJob):
    """The job of Transformers with trl's trainer."""

    arguments_class = SFTConfig

    def make_trainer(self, model: Any, arguments: Any, callbacks: list[TrainerCallback]) -> Trainer:
        rows = Rows()
        tokens = [rows[index]["input_ids"].tolist() for index in range(len(rows))]
        dataset = Dataset.from_dict({"input_ids": tokens})
        return SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=dataset,
            processing_class=tokenizer(),
            callbacks=callbacks,
        )


def main() -> None:
    join_ranks()
    trial.run("trl", TrlJob)


if __name__ == "__main__":
    main()
