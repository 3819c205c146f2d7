"""Modalities' saving and loading of its AppState; see `trial`."""

from pathlib import Path
from typing import Any

import torch.distributed as dist
import trial
from fsdp_training import Training, join_ranks
from modalities.checkpointing.checkpoint_saving_instruction import CheckpointingInstruction
from modalities.checkpointing.fsdp.fsdp_checkpoint_loading import DCPCheckpointLoading
from modalities.checkpointing.fsdp.fsdp_checkpoint_saving import DCPCheckpointSaving
from modalities.checkpointing.stateful.app_state import AppState
from modalities.training.training_progress import TrainingProgress


class ModalitiesJob:
    """A model in training."""

    def __init__(self, seed: int) -> None:
        self._training = Training(seed)

    def train(self, steps: int) -> None:
        self._training.train(steps)

    def _app_state(self) -> AppState:
        return AppState(self._training.net, self._training.optimizer)

    def save(self, path: Path) -> None:
        saving = DCPCheckpointSaving(path, "trial", dist.get_rank())
        progress = TrainingProgress(
            num_seen_steps_current_run=2,
            num_seen_tokens_current_run=24,
            num_target_steps=4,
            num_target_tokens=48,
        )
        saving.run_checkpoint_instruction(
            CheckpointingInstruction(save_current=True, checkpoints_to_delete=[]), progress, self._app_state()
        )

    def load(self, path: Path) -> None:
        (checkpoint,) = path.glob("eid_*")
        DCPCheckpointLoading(dist.get_rank()).load_checkpoint_(self._app_state(), checkpoint)

    def state(self) -> dict[str, Any]:
        return self._training.state()


def main() -> None:
    join_ranks()
    trial.run("modalities", ModalitiesJob)


if __name__ == "__main__":
    main()
