"""Loads a model of 20 layers from a throttled disk, by cairn.load and by cairn.load_async, in turn.

    sudo python bench/layered_load.py [--layer-mib 50] [--rounds 5] [--mb-per-second 200]

Prints the medians: the seconds of a plain load; of load_async until the last byte, as a multiple of the plain load; and
until the first layer is ready, as a share of load_async's whole. The page cache is emptied before each load.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from page_cache import forget
from read_limit import read_limit

import cairn

LAYERS = 20


def warm_up(directory: Path) -> None:
    """Brings the modules that a load imports into memory: the limit is for their files too."""
    cairn.load({"a": torch.zeros(4)}, checkpoint_id=directory / "small")
    cairn.load_async({"a": torch.zeros(4)}, checkpoint_id=directory / "small").result()


def measure(directory: Path, layer_bytes: int, how: str) -> dict[str, float]:
    state = {f"layers.{i}.{name}": torch.zeros(layer_bytes // 16) for i in range(LAYERS) for name in "abcd"}
    first = [f"layers.0.{name}" for name in "abcd"]
    begin = time.perf_counter()
    if how == "load":
        cairn.load(state, checkpoint_id=directory)
        return {"whole": time.perf_counter() - begin}
    load = cairn.load_async(state, checkpoint_id=directory)
    called = time.perf_counter() - begin
    for key in first:
        load.futures[key].result()
    ready = time.perf_counter() - begin
    load.result()
    return {"call": called, "first": ready, "whole": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer-mib", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb-per-second", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--measure", nargs=2, metavar=("DIR", "HOW"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    layer_bytes = arguments.layer_mib << 20
    if arguments.measure:
        directory, how = arguments.measure
        warm_up(Path(directory).parent)
        print(json.dumps(measure(Path(directory), layer_bytes, how)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        directory = Path(scratch) / "saved"
        state = {f"layers.{i}.{name}": torch.rand(layer_bytes // 16) for i in range(LAYERS) for name in "abcd"}
        cairn.save(state, checkpoint_id=directory)
        cairn.save({"a": torch.zeros(4)}, checkpoint_id=Path(scratch) / "small")
        del state
        found: dict[str, list[dict[str, float]]] = {"load": [], "load_async": []}
        with read_limit(arguments.mb_per_second * 1_000_000, Path(scratch)) as words:
            for _ in range(arguments.rounds):
                for how, samples in found.items():
                    forget(directory)
                    command = [*words, sys.executable, __file__, "--layer-mib", str(arguments.layer_mib)]
                    ran = subprocess.run(
                        [*command, "--measure", str(directory), how], check=True, capture_output=True, text=True
                    )
                    samples.append(json.loads(ran.stdout.splitlines()[-1]))
    plain = statistics.median(sample["whole"] for sample in found["load"])
    whole = statistics.median(sample["whole"] for sample in found["load_async"])
    first = statistics.median(sample["first"] / sample["whole"] for sample in found["load_async"])
    call = statistics.median(sample["call"] for sample in found["load_async"])
    print(f"load: {plain:.2f} s, {LAYERS * layer_bytes / plain / 1e6:.0f} MB/s")
    print(f"load_async: {whole:.2f} s, {whole / plain:.3f} of load; the call {call * 1000:.0f} ms")
    print(f"first of {LAYERS} layers ready after {first:.1%}")


if __name__ == "__main__":
    main()
