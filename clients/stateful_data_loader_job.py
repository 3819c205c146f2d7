"""torchdata's StatefulDataLoader beside the model, on torch's `save` and `load`; see `trial`.

Each rank has a loader with a worker process and shuffled samples. The loader is Stateful: it is an entry of the state,
under a key with the rank's number. The order of all samples so far is a part of the state: a resumed job gets the
batches of an uninterrupted job. The job is killed in the middle of an epoch, and the resumed job begins the next epoch.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import trial
from fsdp_training import Training, join_ranks
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torchdata.stateful_dataloader import StatefulDataLoader
from training import loss_of

SAMPLES = 16  # of a rank
BATCH = 4


class StatefulDataLoaderJob:
    """A model in training, and the loader that gives its batches."""

    def __init__(self, seed: int) -> None:
        self._training = Training(seed)
        self._order = torch.zeros((), dtype=torch.int64)  # depends on each sample so far, and on their order
        samples = range(SAMPLES * dist.get_rank(), SAMPLES * (dist.get_rank() + 1))
        # A job with another seed shuffles in another order, unless it gets the state of the shuffle.
        self._loader: StatefulDataLoader[int] = StatefulDataLoader(
            samples,  # type: ignore[arg-type]
            batch_size=BATCH,
            shuffle=True,
            num_workers=1,
            generator=torch.Generator().manual_seed(seed),
        )
        self._batches = iter(self._loader)

    def _next_batch(self) -> torch.Tensor:
        batch = next(self._batches, None)
        if batch is None:  # the next epoch
            self._batches = iter(self._loader)
            batch = next(self._batches)
        return batch

    def train(self, steps: int) -> None:
        for _ in range(steps):
            batch = self._next_batch()
            for sample in batch:
                self._order.mul_(31).add_(sample)
            self._training.optimizer.zero_grad()
            loss = loss_of(self._training.net, dist.get_rank())
            (loss * (1 + batch.float().mean())).backward()
            self._training.optimizer.step()

    def _state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._training.net, self._training.optimizer)
        rank = dist.get_rank()
        return {
            "model": model,
            "optimizer": optimizer,
            f"loader-{rank}": self._loader,
            f"order-{rank}": self._order,
        }

    def save(self, path: Path) -> None:
        dcp.save(self._state_dict(), checkpoint_id=path)

    def load(self, path: Path) -> None:
        state = self._state_dict()
        dcp.load(state, checkpoint_id=path)
        set_state_dict(
            self._training.net,
            self._training.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self._batches = iter(self._loader)

    def state(self) -> dict[str, Any]:
        return {**self._training.state(), "order": self._order.clone()}


def main() -> None:
    join_ranks()
    trial.run("torchdata", StatefulDataLoaderJob)


if __name__ == "__main__":
    main()
