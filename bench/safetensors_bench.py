"""Safetensors models: saves, consolidations and loads, Cairn beside torch, safetensors and loaders of PyPI.

Each load has a process of its own (forked_calls.py). The saves of a round share a process, and so do the consolidations
of a setting.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from forked_calls import CallFailed, ForkedCalls
from loader_environment import loader_python
from model_loaders import LOADERS, measure_load  # noqa: F401  called in the forked process
from model_savers import CONSOLIDATIONS, SAVERS
from page_cache import bytes_on_disk, empty_directory, forget, remember
from spread_table import Samples, head, seconds_and_multiples
from states import State, bytes_of, small_tensors, tensors_of, transformer_with_adam
from stopwatch import seconds_of

import cairn
from cairn.hf_storage import HuggingFaceStorageWriter

HERE = Path(__file__).stem
TEMPERATURES = {"cold": False, "warm": True}  # by name: whether the files to read are in the page cache
DURABILITIES = {"durable": True, "not durable": False}

Found = dict[str, dict[str, float]]  # by figure and peer
Times = dict[str, float | str]  # by peer: seconds, or the reason of a failure


# --- in the process of a call


def tensors_alone(mebibytes: int) -> State:
    """Returns weights and Adam moments under flat keys, without the values that safetensors lacks; a few small tensors
    for size 0."""
    if mebibytes == 0:
        return small_tensors(8)
    return dict(tensors_of(transformer_with_adam(mebibytes)))


def write_models(directory: str, mebibytes: int) -> int:
    """Writes one state as a model, as the shards of one rank, and as a DCP checkpoint. Returns the tensors' bytes."""
    state = tensors_alone(mebibytes)
    folder = Path(directory)
    folder.mkdir(parents=True)
    cairn.save(state, storage_writer=HuggingFaceStorageWriter(folder / "model"), no_dist=True)
    cairn.save(state, storage_writer=HuggingFaceStorageWriter(folder / "shards", save_distributed=True), no_dist=True)
    cairn.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    return bytes_of(state)


def measure_saves(targets: str, mebibytes: int, peers: list[str]) -> Times:
    """Returns the seconds of a save by each library."""
    state = tensors_alone(mebibytes)
    first = tensors_alone(0)
    times: Times = {}
    for peer in peers:
        try:
            with empty_directory(Path(targets) / "small") as directory:
                SAVERS[peer](first, directory)
            with empty_directory(Path(targets) / "large") as directory:
                times[peer], _ = seconds_of(lambda peer=peer, place=directory: SAVERS[peer](state, place))  # type: ignore[misc]
                check_bytes(bytes_of(state), directory)
        except Exception as error:
            times[peer] = f"{type(error).__name__}: {error}"
    return times


def measure_consolidations(models: str, targets: str, is_cached: bool, durable: bool, peers: list[str]) -> Times:
    """Returns the seconds of a consolidation of one rank's shards by each library, and of a copy of the shards."""
    times: Times = {}
    for peer in peers:
        try:
            with empty_directory(Path(targets)) as directory:
                CONSOLIDATIONS[peer](Path(models) / "small" / "shards", directory / "small", durable)
                shards = Path(models) / "large" / "shards"
                (remember if is_cached else forget)(shards)
                target = directory / "large"
                action = CONSOLIDATIONS[peer]
                times[peer], _ = seconds_of(
                    lambda action=action, shards=shards, target=target: action(shards, target, durable)  # type: ignore[misc]
                )
                check_bytes(bytes_on_disk(shards), target)
        except Exception as error:
            times[peer] = f"{type(error).__name__}: {error}"
    return times


def check_bytes(expected: int, directory: Path) -> None:
    """Raises if clearly fewer bytes were written: a save may fail silently."""
    if bytes_on_disk(directory) < 0.99 * expected:
        raise RuntimeError(f"{bytes_on_disk(directory)} bytes were written of {expected}")


# --- from the outside


def consolidation_figure(temperature: str, durability: str) -> str:
    return f"safetensors: consolidation, {temperature}, {durability}"


def load_figure(temperature: str) -> str:
    return f"safetensors: {temperature} load"


SAVE_FIGURE = "safetensors: save"


class SafetensorsBench:
    """The models to load, and the process that forks. A context manager."""

    def __init__(self, scratch: Path, mebibytes: int) -> None:
        self.calls = ForkedCalls([HERE], loader_python())
        self.mebibytes = mebibytes
        self.models = scratch / "models"
        self.targets = scratch / "targets"
        self.failed: set[tuple[str, str]] = set()
        for name, size in (("small", 0), ("large", mebibytes)):
            self.calls.call(HERE, "write_models", self.models / name, size)

    def __enter__(self) -> "SafetensorsBench":
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.process.communicate()
        shutil.rmtree(self.models)
        shutil.rmtree(self.targets, ignore_errors=True)

    def one_round(self) -> Found:
        """Measures all libraries once, in turn. Returns the seconds by figure and library."""
        found: Found = {SAVE_FIGURE: self.times("save", SAVERS, "measure_saves", self.targets, self.mebibytes)}
        for temperature, is_cached in TEMPERATURES.items():
            for durability, durable in DURABILITIES.items():
                found[consolidation_figure(temperature, durability)] = self.times(
                    "consolidation",
                    CONSOLIDATIONS,
                    "measure_consolidations",
                    *(self.models, self.targets, is_cached, durable),
                )
            loads = found[load_figure(temperature)] = {}
            for peer in LOADERS:
                if ("load", peer) not in self.failed:
                    try:
                        loads[peer] = self.calls.call(HERE, "measure_load", peer, self.models, is_cached)["seconds"]
                    except CallFailed as error:
                        self.leave_out("load", peer, str(error))
        return found

    def times(self, what: str, peers: Any, function: str, *arguments: Any) -> dict[str, float]:
        """Returns the seconds of the libraries that succeed. The rest is left out of all later rounds."""
        left = [peer for peer in peers if (what, peer) not in self.failed]
        found: Times = self.calls.call(HERE, function, *arguments, left)
        for peer, seconds in found.items():
            if isinstance(seconds, str):
                self.leave_out(what, peer, seconds)
        return {peer: seconds for peer, seconds in found.items() if not isinstance(seconds, str)}

    def leave_out(self, what: str, peer: str, reason: str) -> None:
        print(f"  {what} by {peer} failed: {reason}", file=sys.stderr, flush=True)
        self.failed.add((what, peer))


def safetensors_lines(samples: Samples) -> list[str]:
    """Returns the rows of the table."""
    if SAVE_FIGURE not in samples:
        return []
    saves, loads, consolidations = list(SAVERS), list(LOADERS), list(CONSOLIDATIONS)
    lines = [head("safetensors, save", saves)]
    lines += seconds_and_multiples(samples, {SAVE_FIGURE: "save"}, saves, "cairn.save")
    lines.append(head("safetensors, consolidation", consolidations))
    for temperature in TEMPERATURES:
        for durability in DURABILITIES:
            title = {consolidation_figure(temperature, durability): f"{temperature}, {durability}"}
            lines += seconds_and_multiples(samples, title, consolidations, "copy")
    lines.append(head("safetensors, load", loads))
    for temperature in TEMPERATURES:
        title = {load_figure(temperature): f"{temperature} page cache"}
        lines += seconds_and_multiples(samples, title, loads, "cairn.load, DCP")
    return lines
