"""OLMo-core's checkpoints of model and optimizer; see `trial`.

OLMo-core has its own storage writer and reader for local and remote folders. The user replaces both by Cairn's with the
two lines in `switch`.
"""

from pathlib import Path
from typing import Any

import olmo_core.distributed.checkpoint as olmo
import trial
from fsdp_training import Training, join_ranks

import cairn

_stock = olmo.RemoteFileSystemWriter, olmo.RemoteFileSystemReader


def switch(to_cairn: bool) -> None:
    if not to_cairn:
        cairn.uninstall()
        olmo.RemoteFileSystemWriter, olmo.RemoteFileSystemReader = _stock
        return
    cairn.install()
    olmo.RemoteFileSystemWriter = lambda folder, **options: cairn.FileSystemWriter(folder)
    olmo.RemoteFileSystemReader = lambda folder, **options: cairn.FileSystemReader(folder)


class OlmoJob:
    """A model in training, saved at once and in the background."""

    def __init__(self, seed: int) -> None:
        self._training = Training(seed)

    def train(self, steps: int) -> None:
        self._training.train(steps)

    def save(self, path: Path) -> None:
        parts = self._training.net, self._training.optimizer
        olmo.save_model_and_optim_state(path / "sync", *parts)
        olmo.async_save_model_and_optim_state(path / "async", *parts).result()

    def load(self, path: Path) -> None:
        for folder in ("sync", "async"):
            olmo.load_model_and_optim_state(path / folder, self._training.net, self._training.optimizer)

    def state(self) -> dict[str, Any]:
        return self._training.state()


def main() -> None:
    join_ranks()
    trial.run("ai2-olmo-core", OlmoJob, switch=switch)


if __name__ == "__main__":
    main()
