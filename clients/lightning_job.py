"""Lightning's Fabric with ModelParallelStrategy; see `trial`."""

import os

import trial
from fabric_job import FabricJob, shard
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy


def main() -> None:
    ranks = int(os.environ["WORLD_SIZE"])
    strategy = ModelParallelStrategy(shard, data_parallel_size=ranks, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    trial.run("lightning", lambda seed: FabricJob(fabric, seed))


if __name__ == "__main__":
    main()
