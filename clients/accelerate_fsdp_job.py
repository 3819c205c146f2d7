"""Accelerate's save_state and load_state, with FSDP2 and sharded checkpoints; see `trial`."""

from typing import Any

import trial
from accelerate_job import AccelerateJob, make_accelerator
from fsdp_training import local_copies
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


class AccelerateFsdpJob(AccelerateJob):
    """A model in training. The state holds the rank's part of the model."""

    def state(self) -> dict[str, Any]:
        optimizer = get_optimizer_state_dict(self._net, self._optimizer.optimizer)
        return local_copies({"model": self._net.state_dict(), "optimizer": optimizer})


def main() -> None:
    accelerator = make_accelerator()
    trial.run("accelerate", lambda seed: AccelerateFsdpJob(accelerator, seed))


if __name__ == "__main__":
    main()
