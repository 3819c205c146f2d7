"""torchtune's DistributedCheckpointer, synchronous and asynchronous; see `trial`."""

from pathlib import Path
from typing import Any

import trial
from fsdp_training import Training, join_ranks
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torchtune.training.checkpointing import DistributedCheckpointer


class TorchtuneJob:
    """A model in training, saved synchronously as epoch 0 and in the background as epoch 1."""

    def __init__(self, seed: int) -> None:
        self._training = Training(seed)
        self._steps = 0

    def train(self, steps: int) -> None:
        self._training.train(steps)
        self._steps += steps

    def _state_dict(self) -> dict[str, Any]:
        net, optimizer = self._training.net, self._training.optimizer
        return {
            "model": get_model_state_dict(net),
            "optimizer": get_optimizer_state_dict(net, optimizer),
            "steps_run": self._steps,
        }

    def save(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        checkpointer = DistributedCheckpointer(str(path), str(path))
        for epoch, in_background in enumerate((False, True)):
            checkpointer.save_checkpoint(self._state_dict(), epoch, save_async=in_background)
        checkpointer._checkpoint_future.result()

    def load(self, path: Path) -> None:
        checkpointer = DistributedCheckpointer(str(path), str(path))
        for checkpoint in (str(path / "dist_epoch_0"), None):  # None: the latest
            state = checkpointer.load_checkpoint(self._state_dict(), checkpoint)
            set_model_state_dict(self._training.net, state["model"])
            set_optimizer_state_dict(self._training.net, self._training.optimizer, state["optimizer"])
            self._steps = state["steps_run"]

    def state(self) -> dict[str, Any]:
        return {**self._training.state(), "steps": self._steps}


def main() -> None:
    join_ranks()
    trial.run("torchtune", TorchtuneJob)


if __name__ == "__main__":
    main()
