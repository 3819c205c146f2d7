"""Saves, loads and consolidates a safetensors model, beside a DCP checkpoint of the same state and a copy of the files.

PYTHONPATH=build/release/python python bench/model_bench.py DIRECTORY
"""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import cairn
from cairn._calls.consolidation import consolidate_safetensors_files
from cairn.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

ROUNDS = 3


def best(work: Callable[[int], object]) -> float:
    """Returns the seconds of the fastest round."""
    seconds = []
    for number in range(ROUNDS):
        begin = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def copy_synced(source: Path, target: Path) -> None:
    target.mkdir()
    for file in source.iterdir():
        shutil.copyfile(file, target / file.name)
        descriptor = os.open(target / file.name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def main() -> None:
    root = Path(sys.argv[1])
    state = {f"layer{i}": torch.randn(2048, 2048) for i in range(32)}
    empty = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    model = root / "model0"
    pairs = {
        "save": (
            best(lambda i: cairn.save(state, checkpoint_id=root / f"dcp{i}")),
            best(lambda i: cairn.save(state, storage_writer=HuggingFaceStorageWriter(root / f"model{i}"))),
        ),
        "load": (
            best(lambda i: cairn.load(empty, checkpoint_id=root / f"dcp{i}")),
            best(lambda i: cairn.load(empty, storage_reader=HuggingFaceStorageReader(root / f"model{i}"))),
        ),
        "consolidation, beside a synced copy": (
            best(lambda i: copy_synced(model, root / f"copy{i}")),
            best(lambda i: consolidate_safetensors_files(model, root / f"whole{i}", {})),
        ),
    }
    for name, (other, ours) in pairs.items():
        print(f"{name}: {ours:.3f} s, {ours / other:.2f} x {other:.3f} s")


if __name__ == "__main__":
    main()
