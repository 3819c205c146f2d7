"""torchtitan's CheckpointManager, in each of its three modes in turn; see `trial`.

For the pinned mode on CPUs the user adds a line: the manager's own stager needs an accelerator.
"""

from pathlib import Path
from typing import Any

import trial
from fsdp_training import Training, join_ranks, local_copies
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torchtitan.components.checkpoint import CheckpointManager

MODES = ("disabled", "async", "async_with_pinned_mem")
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Optimizers:
    """Replaces torchtitan's container of optimizers: a flat state by names of parameters."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def state_dict(self) -> dict[str, Any]:
        return get_optimizer_state_dict(self._training.net, self._training.optimizer, options=FLAT)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_optimizer_state_dict(self._training.net, self._training.optimizer, state, options=FLAT)


class Progress:
    """A part of the job's state: of the data loader, the schedule or the trainer."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


class TitanJob:
    """A model in training, saved in each mode to a separate folder."""

    def __init__(self, seed: int) -> None:
        self._training = Training(seed)
        self._parts = [Progress() for _ in range(3)]

    def train(self, steps: int) -> None:
        self._training.train(steps)
        for part in self._parts:
            part.step += steps

    def _manager(self, mode: str, path: Path) -> CheckpointManager:
        loader, schedule, progress = self._parts
        config = CheckpointManager.Config(
            enable=True, folder=mode, interval=1, async_mode=mode, keep_latest_k=0, last_save_model_only=False
        )
        manager = CheckpointManager(
            config,
            dataloader=loader,
            model_parts=[self._training.net],
            optimizers=Optimizers(self._training),
            lr_schedulers=schedule,
            states={"train_state": progress},
            sd_adapter=None,
            base_folder=str(path),
        )
        if mode == "async_with_pinned_mem":
            manager.stager = DefaultStager(StagingOptions(False, True, True, False))
        return manager

    def save(self, path: Path) -> None:
        for mode in MODES:
            manager = self._manager(mode, path)
            manager.save(self._parts[0].step)
            if mode != "disabled":
                manager.maybe_wait_for_staging()
                manager._wait_for_saving()
            manager.close()

    def load(self, path: Path) -> None:
        for mode in MODES:
            manager = self._manager(mode, path)
            assert manager.load(step=-1), f"nothing to load in {path / mode}"
            manager.close()

    def state(self) -> dict[str, Any]:
        steps = [part.step for part in self._parts]
        return {
            **self._training.state(),
            "optimizers": local_copies(Optimizers(self._training).state_dict()),
            "steps": steps,
        }


def main() -> None:
    join_ranks()
    trial.run("torchtitan", TitanJob)


if __name__ == "__main__":
    main()
