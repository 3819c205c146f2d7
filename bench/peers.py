"""The compared libraries' saves and loads, each with Cairn's durability: file and directory are synced."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from durable import sync
from states import State, tensors_of

import cairn


@dataclass(frozen=True)
class Peer:
    """`save` writes a state into an empty directory; `load` reads the state back into memory.

    Cairn and DCP fill the tensors of `state`; torch.load makes new tensors. Mapped files are copied into `state`,
    because mapping alone reads nothing.
    """

    name: str
    save: Callable[[State, Path], None]
    load: Callable[[State, Path], Any]


def cairn_save(state: State, directory: Path) -> None:
    cairn.save(state, checkpoint_id=directory, no_dist=True)


def cairn_load(state: State, directory: Path) -> None:
    cairn.load(state, checkpoint_id=directory, no_dist=True)


def dcp_saver(thread_count: int) -> Callable[[State, Path], None]:
    def save(state: State, directory: Path) -> None:
        writer = dcp.FileSystemWriter(directory, thread_count=thread_count, sync_files=True)
        dcp.save(state, storage_writer=writer, no_dist=True)
        sync(directory)

    return save


def dcp_load(state: State, directory: Path) -> None:
    dcp.load(state, checkpoint_id=directory, no_dist=True)


def torch_save(state: State, directory: Path) -> None:
    with (directory / "state.pt").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    sync(directory)


def torch_load(_: State, directory: Path) -> State:
    return torch.load(directory / "state.pt", weights_only=True)


def copy_into(state: State, loaded: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors_of(state).items():
        tensor.copy_(loaded[name])


def torch_load_mapped(state: State, directory: Path) -> None:
    copy_into(state, tensors_of(torch.load(directory / "state.pt", weights_only=True, mmap=True)))


def safetensors_save(state: State, directory: Path) -> None:
    safetensors.torch.save_file(tensors_of(state), directory / "state.safetensors")
    sync(directory / "state.safetensors")
    sync(directory)


def safetensors_load(state: State, directory: Path) -> None:
    copy_into(state, safetensors.torch.load_file(directory / "state.safetensors"))


PEERS = {
    peer.name: peer
    for peer in (
        Peer("cairn", cairn_save, cairn_load),
        Peer("dcp", dcp_saver(1), dcp_load),
        Peer("dcp 2 threads", dcp_saver(2), dcp_load),
        Peer("torch.save", torch_save, torch_load),
        Peer("torch.save mmap", torch_save, torch_load_mapped),
        Peer("safetensors", safetensors_save, safetensors_load),
    )
}

# Both libraries warn at every call that only one process saves.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")
warnings.filterwarnings("ignore", message="Detected an existing checkpoint")
