"""The compared loads of a safetensors model into the memory of the CPU.

`cairn` and `torch` fill tensors that exist, as a trainer's or a server's model does. `cairn.open` and the loaders of
PyPI make tensors. safetensors only maps the file: the bench copies the mapped tensors into the existing tensors,
because mapping alone reads nothing.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from page_cache import files_of, forget, remember
from stopwatch import seconds_of
from torch.distributed.checkpoint import hf_storage as stock

import cairn
from cairn import hf_storage

warnings.filterwarnings("ignore", message="torch.distributed is disabled")

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Loader:
    """`load` gets the directory of the model, and tensors of its keys if `fills`. Returns the tensors, and whatever
    owns their memory."""

    load: Callable[[Path, Tensors], tuple[Tensors, Any]]
    fills: bool = True
    of_model: bool = True  # False: loads the DCP checkpoint of the state


def model_files(directory: Path) -> list[Path]:
    return [file for file in files_of(directory) if file.suffix == ".safetensors"]


def own_format(directory: Path, state: Tensors) -> tuple[Tensors, Any]:
    cairn.load(state, checkpoint_id=directory, no_dist=True)
    return state, None


def cairn_reader(directory: Path, state: Tensors) -> tuple[Tensors, Any]:
    cairn.load(state, storage_reader=hf_storage.HuggingFaceStorageReader(directory), no_dist=True)
    return state, None


def new_tensors(directory: Path, _: Tensors) -> tuple[Tensors, Any]:
    checkpoint = cairn.open(directory, tensors="torch")
    return {key: checkpoint[key] for key in checkpoint}, None


def stock_reader(directory: Path, state: Tensors) -> tuple[Tensors, Any]:
    dcp.load(state, storage_reader=stock.HuggingFaceStorageReader(str(directory)), no_dist=True)
    return state, None


def load_file(directory: Path, state: Tensors) -> tuple[Tensors, Any]:
    for file in model_files(directory):
        for key, tensor in safetensors.torch.load_file(file).items():
            state[key].copy_(tensor)
    return state, None


def fast_safetensors(directory: Path, _: Tensors) -> tuple[Tensors, Any]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
    loader.add_filenames({0: [str(file) for file in model_files(directory)]})
    buffers = loader.copy_files_to_device()
    return {key: buffers.get_tensor(key) for key in loader.get_keys()}, (loader, buffers)


def run_ai_streamer(directory: Path, _: Tensors) -> tuple[Tensors, Any]:
    from runai_model_streamer import SafetensorsStreamer

    streamer = SafetensorsStreamer().__enter__()  # the end of the context would free the tensors' memory
    streamer.stream_files([str(file) for file in model_files(directory)])
    return dict(streamer.get_tensors()), streamer


LOADERS = {
    "cairn.load, DCP": Loader(own_format, of_model=False),
    "cairn": Loader(cairn_reader),
    "cairn.open": Loader(new_tensors, fills=False),
    "torch": Loader(stock_reader),
    "load_file": Loader(load_file),
    "fastsafetensors": Loader(fast_safetensors, fills=False),
    "runai": Loader(run_ai_streamer, fills=False),
}


def measure_load(peer: str, models: str, is_cached: bool) -> dict[str, float]:
    """Loads the small model of `models`, and then the large model. Returns the figures of the large load."""
    loader = LOADERS[peer]
    warm_up, _ = loader.load(Path(models) / "small" / kind(loader), tensors_like(Path(models) / "small" / "model"))
    del warm_up
    model = Path(models) / "large" / "model"
    state = tensors_like(model) if loader.fills else {}
    directory = model.with_name(kind(loader))
    (remember if is_cached else forget)(directory)
    kept: list[Any] = []
    wall, cpu = seconds_of(lambda: kept.append(loader.load(directory, state)))
    check_tensors(kept[0][0], model)
    return {"seconds": wall, "cpu": cpu}


def kind(loader: Loader) -> str:
    return "model" if loader.of_model else "dcp"


def tensors_like(model: Path) -> Tensors:
    """Returns tensors of zeros for each key, in memory that was touched."""
    with safetensors.safe_open(model_files(model)[0], "pt") as file:
        return {key: torch.empty_like(file.get_tensor(key)).fill_(0) for key in file.keys()}  # noqa: SIM118


def check_tensors(loaded: Tensors, model: Path) -> None:
    """Raises if a tensor differs from the model's: a loader may return before its reads have ended."""
    with safetensors.safe_open(model_files(model)[0], "pt") as file:
        keys = list(file.keys())
        if set(keys) != set(loaded):
            raise RuntimeError(f"{len(loaded)} tensors were loaded of {len(keys)}")
        for key in keys:
            if not torch.equal(loaded[key], file.get_tensor(key)):
                raise RuntimeError(f"'{key}' was loaded with other elements")
