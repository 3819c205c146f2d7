"""NeMo Automodel's Checkpointer with model_save_format="torch_save": model and optimizer through DCP; see `trial`.

The asynchronous mode is not tried: its stager, torch's, needs an accelerator.
"""

from pathlib import Path
from typing import Any

import torch.distributed as dist
import trial
from fsdp_training import Training, join_ranks
from nemo_automodel.components.checkpoint.checkpointing import Checkpointer
from nemo_automodel.components.checkpoint.config import CheckpointingConfig


class AutomodelJob:
    """A model in training."""

    def __init__(self, seed: int) -> None:
        self._training = Training(seed)

    def train(self, steps: int) -> None:
        self._training.train(steps)

    def _checkpointer(self, path: Path) -> Checkpointer:
        config = CheckpointingConfig(
            checkpoint_dir=path, model_save_format="torch_save", model_repo_id="trial", save_consolidated=False
        )
        return Checkpointer(config, dp_rank=dist.get_rank(), tp_rank=0, pp_rank=0)

    def save(self, path: Path) -> None:
        checkpointer = self._checkpointer(path)
        checkpointer.save_model(self._training.net, str(path))
        checkpointer.save_optimizer(self._training.optimizer, self._training.net, str(path))
        checkpointer.close()

    def load(self, path: Path) -> None:
        checkpointer = self._checkpointer(path)
        checkpointer.load_model(self._training.net, str(path / "model"))
        checkpointer.load_optimizer(self._training.optimizer, self._training.net, str(path))
        checkpointer.close()

    def state(self) -> dict[str, Any]:
        return self._training.state()


def main() -> None:
    join_ranks()
    trial.run("nemo-automodel", AutomodelJob)


if __name__ == "__main__":
    main()
