"""The compared conversions: Cairn's functions, the route of a torch user, and a copy of the source.

A conversion gets source, target and durability. A durable conversion returns when bytes and names are synced; torch's
routes lack the syncs of names and of single files, and get the syncs here. torch_save_to_dcp and dcp_to_torch_save of
Cairn always sync, so the conversions that are not durable use cairn.convert.
"""

import warnings
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from durable import sync_all
from file_copy import copy_files
from torch.distributed.checkpoint import format_utils as stock

import cairn
from cairn import format_utils

Convert = Callable[[Path, Path, bool], None]

warnings.filterwarnings("ignore", message="torch.distributed is disabled")


# --- Cairn


def dcp_to_torch(source: Path, target: Path, durable: bool) -> None:
    if durable:
        format_utils.dcp_to_torch_save(source, target)
    else:
        cairn.convert(source, target, to="torch", durable=False)


def torch_to_dcp(source: Path, target: Path, durable: bool) -> None:
    if durable:
        format_utils.torch_save_to_dcp(source, target)
    else:
        cairn.convert(source, target, to="dcp", durable=False)


def dcp_to_safetensors(source: Path, target: Path, durable: bool) -> None:
    cairn.convert(source, target, to="safetensors", durable=durable)


def safetensors_to_dcp(source: Path, target: Path, durable: bool) -> None:
    cairn.convert(source, target, to="dcp", durable=durable)


# --- torch


def stock_dcp_to_torch(source: Path, target: Path, durable: bool) -> None:
    stock.dcp_to_torch_save(source, target)
    if durable:
        sync_all(target)


def stock_torch_to_dcp(source: Path, target: Path, durable: bool) -> None:
    stock.torch_save_to_dcp(source, target)  # syncs the data file always
    if durable:
        sync_all(target)


def stock_dcp_to_safetensors(source: Path, target: Path, durable: bool) -> None:
    described = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    state = {key: torch.empty(tensor.size, dtype=tensor.properties.dtype) for key, tensor in described.items()}
    dcp.load(state, checkpoint_id=source, no_dist=True)
    safetensors.torch.save_file(state, target)
    if durable:
        sync_all(target)


def stock_safetensors_to_dcp(source: Path, target: Path, durable: bool) -> None:
    state = safetensors.torch.load_file(source)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(target, sync_files=durable), no_dist=True)
    if durable:
        sync_all(target)


# By direction, "FORMAT to FORMAT", and library.
CONVERSIONS: dict[str, dict[str, Convert]] = {
    "dcp to torch": {"cairn": dcp_to_torch, "torch": stock_dcp_to_torch, "copy": copy_files},
    "torch to dcp": {"cairn": torch_to_dcp, "torch": stock_torch_to_dcp, "copy": copy_files},
    "dcp to safetensors": {"cairn": dcp_to_safetensors, "torch": stock_dcp_to_safetensors, "copy": copy_files},
    "safetensors to dcp": {"cairn": safetensors_to_dcp, "torch": stock_safetensors_to_dcp, "copy": copy_files},
}
