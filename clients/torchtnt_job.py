"""torchtnt's DistributedCheckpointSaver, called by its training loop; see `trial`."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import trial
from fsdp_training import Training, join_ranks
from torchtnt.framework.callbacks import DistributedCheckpointSaver
from torchtnt.framework.state import State
from torchtnt.framework.train import train
from torchtnt.framework.unit import TrainUnit
from training import loss_of


class Unit(TrainUnit[int]):
    """The unit that torchtnt trains and saves: the modules and optimizers among its attributes."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.net = training.net
        self.optimizer = training.optimizer

    def train_step(self, state: State, data: int) -> torch.Tensor:
        loss = loss_of(self.net, dist.get_rank())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class TorchtntJob:
    """A model in training. The saver runs at the end of an epoch, which is one step."""

    def __init__(self, seed: int) -> None:
        self._training = Training(seed)
        self._unit = Unit(self._training)

    def _epochs(self, count: int, *callbacks: Any) -> None:
        done = self._unit.train_progress.num_epochs_completed
        train(self._unit, [0], max_epochs=done + count, callbacks=list(callbacks))

    def train(self, steps: int) -> None:
        self._epochs(steps)

    def save(self, path: Path) -> None:
        for asynchronous, folder in ((False, "sync"), (True, "async")):
            saver = DistributedCheckpointSaver(str(path / folder), save_every_n_epochs=1, async_checkpoint=asynchronous)
            self._epochs(1, saver)

    def load(self, path: Path) -> None:
        for folder in ("sync", "async"):
            (checkpoint,) = (path / folder).iterdir()
            DistributedCheckpointSaver.restore(str(checkpoint), self._unit)

    def state(self) -> dict[str, Any]:
        return {**self._training.state(), "epochs": self._unit.train_progress.num_epochs_completed}


def main() -> None:
    join_ranks()
    trial.run("torchtnt", TorchtntJob)


if __name__ == "__main__":
    main()
