"""The compared saves and consolidations of safetensors models. All are durable, or none is: a library without syncs
gets the syncs here, and its time includes them."""

import warnings
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch.distributed.checkpoint as dcp
from durable import sync_all
from file_copy import copy_files
from states import State
from torch.distributed.checkpoint import _consolidate_hf_safetensors as stock_consolidation
from torch.distributed.checkpoint import hf_storage as stock

import cairn
from cairn import _engine, hf_storage

warnings.filterwarnings("ignore", message="torch.distributed is disabled")

Save = Callable[[State, Path], None]


def own_format(state: State, directory: Path) -> None:
    cairn.save(state, checkpoint_id=directory, no_dist=True)


def cairn_model(state: State, directory: Path) -> None:
    cairn.save(state, storage_writer=hf_storage.HuggingFaceStorageWriter(directory), no_dist=True)


def cairn_consolidated(state: State, directory: Path) -> None:
    writer = hf_storage.HuggingFaceStorageWriter(directory, save_distributed=True, enable_consolidation=True)
    cairn.save(state, storage_writer=writer, no_dist=True)


def stock_model(state: State, directory: Path) -> None:
    dcp.save(state, storage_writer=stock.HuggingFaceStorageWriter(str(directory)), no_dist=True)
    sync_all(directory)


def stock_consolidated(state: State, directory: Path) -> None:
    writer = stock.HuggingFaceStorageWriter(str(directory), save_distributed=True, enable_consolidation=True)
    dcp.save(state, storage_writer=writer, no_dist=True)
    sync_all(directory)


def save_file(state: State, directory: Path) -> None:
    safetensors.torch.save_file(state, directory / "model.safetensors")


def save_file_synced(state: State, directory: Path) -> None:
    save_file(state, directory)
    sync_all(directory)


SAVERS: dict[str, Save] = {
    "cairn.save": own_format,
    "cairn model": cairn_model,
    "cairn consolidated": cairn_consolidated,
    "torch model": stock_model,
    "torch consolidated": stock_consolidated,
    "save_file+fsync": save_file_synced,
    "save_file": save_file,
}

Consolidate = Callable[[Path, Path, bool], None]  # shards, target, durable


def consolidate(shards: Path, target: Path, durable: bool) -> None:
    _engine.consolidate(bytes(shards), bytes(target), safetensors=({}, False, False), thread_count=4, durable=durable)


def stock_consolidate(shards: Path, target: Path, durable: bool) -> None:
    target.mkdir()
    with safetensors.safe_open(next(shards.glob("*.safetensors")), "pt") as file:
        mapping = dict.fromkeys(file.keys(), 1)
    stock_consolidation.consolidate_safetensors_files(str(shards), str(target), mapping)
    if durable:
        sync_all(target)


CONSOLIDATIONS: dict[str, Consolidate] = {"cairn": consolidate, "copy": copy_files, "torch": stock_consolidate}
