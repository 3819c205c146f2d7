"""Cairn's own part of ``cairn.format_utils``: conversion of a checkpoint to one file of ``torch.save``, and back.

torch's functions of these names unpickle ``.metadata``, every value and the whole file, and thereby run the code that
the pickles name. Cairn's functions have torch's arguments and `allow_pickle`, as in ``cairn.load``: without
`allow_pickle` the functions run nothing from the files, and raise UnsafeContent for content that can't be read without
running code.

As a program: ``python -m cairn.format_utils {torch_to_dcp,dcp_to_torch} SRC DST [--allow-pickle]``.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import BroadcastingTorchSaveReader as StockReader
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan
from torch.futures import Future

from cairn._calls.torch_driver import load_by_protocol, save_by_protocol
from cairn._mirror import replacements
from cairn._settings.consent import pickle_allowed
from cairn._state.torch_file import load_torch_file
from cairn.errors import Cancelled, Error, InvalidArgument, MissingKey, Unsupported

_PathLike = str | os.PathLike[str]


def dcp_to_torch_save(
    dcp_checkpoint_dir: _PathLike, torch_save_path: _PathLike, *, allow_pickle: bool | None = None
) -> None:
    """Writes the whole content of a checkpoint to one file of ``torch.save``, tensors whole and on the CPU.

    Runs no code from the checkpoint unless `allow_pickle` allows the code that the values' pickles name. Raises
    UnsafeContent for a value that needs `allow_pickle`, and then writes nothing.
    """
    state_dict: dict[str, Any] = {}
    planner: Any = _EmptyStateDictLoadPlanner
    load_by_protocol(
        lambda: state_dict,
        checkpoint_id=dcp_checkpoint_dir,
        planner=planner(),
        no_dist=True,
        allow_pickle=pickle_allowed(allow_pickle),
        call="dcp_to_torch_save",
    )
    torch.save(state_dict, torch_save_path)


def torch_save_to_dcp(
    torch_save_path: _PathLike, dcp_checkpoint_dir: _PathLike, *, allow_pickle: bool | None = None
) -> None:
    """Saves the state dict in a file of ``torch.save`` as a checkpoint.

    The file is read by the rules of ``torch.load(weights_only=True)``, and runs no code, unless `allow_pickle` allows
    the code that the file's pickle names. Raises UnsafeContent, Corrupt.
    """
    state_dict = load_torch_file(Path(torch_save_path), pickle_allowed(allow_pickle))
    save_by_protocol(lambda: state_dict, checkpoint_id=dcp_checkpoint_dir, no_dist=True, call="torch_save_to_dcp")


@replacements.stands_for_base
class BroadcastingTorchSaveReader(StockReader):
    """Reads a file of ``torch.save`` on one rank and sends its tensors to the remaining ranks, for
    DynamicMetaLoadPlanner.

    All ranks load equal keys, with tensors of the file's sizes; each rank gets the part in its plan. The file is read
    as by ``torch_save_to_dcp``: without running code from the file, unless `allow_pickle` is True (None: as in
    :func:`cairn.load`). If the reading rank can't read the file, the load fails on all ranks.
    """

    def __init__(
        self,
        checkpoint_id: _PathLike | None = None,
        coordinator_rank: int = 0,
        *,
        allow_pickle: bool | None = None,
    ) -> None:
        super().__init__(checkpoint_id, coordinator_rank)
        self._allow_pickle = allow_pickle

    def prepare_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Raises InvalidArgument if the ranks' plans name different keys: the broadcasts would not match."""
        keys = [[item.storage_index.fqn for item in plan.items] for plan in global_plan]
        if any(of_rank != keys[0] for of_rank in keys):
            raise InvalidArgument(
                f"{type(self).__name__} sends each tensor to all ranks, but the ranks load different keys; "
                f"cairn.format_utils.torch_save_to_dcp makes a checkpoint from which each rank can load its own keys",
                file=str(self.checkpoint_id),
            )
        return global_plan

    def read_data(self, plan: LoadPlan, planner: Any) -> "Future[None]":
        """Broadcasts the tensors of `plan`, in the plan's order, and fills the planner's tensors. A read failure raises
        on all ranks."""
        tensors: dict[str, torch.Tensor] = {}
        failure: Exception | None = None
        if self.is_coordinator:
            try:
                tensors = self._tensors(plan, planner)
            except Exception as error:
                failure = error
        device = dist.distributed_c10d._get_pg_default_device()
        failed = torch.tensor(int(failure is not None), device=device)
        dist.broadcast(failed, src=self.coordinator_rank)
        if failure is not None:
            raise failure
        if failed:
            raise Cancelled(
                f"rank {self.coordinator_rank} could not read '{self.checkpoint_id}': see the error of that rank"
            )
        for item in plan.items:
            target = planner.state_dict[item.storage_index.fqn]
            if self.is_coordinator:
                tensor = tensors[item.storage_index.fqn].to(device, target.dtype).contiguous()
            else:
                tensor = torch.empty(target.shape, dtype=target.dtype, device=device)
            dist.broadcast(tensor, src=self.coordinator_rank)
            part = planner.resolve_tensor(item).detach()
            for dimension, (first, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                tensor = tensor.narrow(dimension, first, length)
            part.copy_(tensor)
            planner.commit_tensor(item, part)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _tensors(self, plan: LoadPlan, planner: Any) -> dict[str, torch.Tensor]:
        """Reads the tensors of `plan` from the file, by key; raises if a size differs from the planner's tensor."""
        name = str(self.checkpoint_id)
        state = load_torch_file(Path(name), pickle_allowed(self._allow_pickle))
        if planner.flatten_state_dict:
            state, _ = flatten_state_dict(state)
        tensors: dict[str, torch.Tensor] = {}
        for item in plan.items:
            key = item.storage_index.fqn
            if key not in state:
                raise MissingKey(f"Missing key in checkpoint state_dict: {key}.", key=key, file=name)
            value = state[key]
            if item.type is LoadItemType.BYTE_IO or not isinstance(value, torch.Tensor):
                raise Unsupported(f"{type(self).__name__} can send only tensors", key=key, file=name)
            expected = planner.state_dict[key].shape
            if value.shape != expected:
                actual, wanted = str(tuple(value.shape)), str(tuple(expected))
                raise InvalidArgument(
                    f"Size mismatch between saved {actual} and current {wanted} for {key}",
                    key=key,
                    file=name,
                    expected=wanted,
                    actual=actual,
                )
            tensors[key] = value
        return tensors


_CONVERSIONS = {"torch_to_dcp": torch_save_to_dcp, "dcp_to_torch": dcp_to_torch_save}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m cairn.format_utils",
        description="Converts a checkpoint to one file of torch.save, or such a file to a checkpoint.",
    )
    parser.add_argument("mode", choices=sorted(_CONVERSIONS))
    parser.add_argument("src", help="the checkpoint or file to read")
    parser.add_argument("dst", help="the file or checkpoint to write")
    parser.add_argument("--allow-pickle", action="store_true", help="run the code that src names, if you trust it")
    given = parser.parse_args(arguments)
    try:
        _CONVERSIONS[given.mode](given.src, given.dst, allow_pickle=given.allow_pickle or None)
    except Error as error:
        print(f"cairn: {error}", file=sys.stderr)
        return 1
    return 0
