"""What ``cairn.format_utils`` has of its own: a checkpoint to one file of ``torch.save``, and the other way.

torch's functions of these names unpickle ``.metadata``, every value and the whole file, and so run the code that these
name. Cairn's have the same arguments, and `allow_pickle`, as ``cairn.load`` has it: without that consent they run
nothing from the files, and raise UnsafeContent for what can't be read so.

As a program: ``python -m cairn.format_utils {torch_to_dcp,dcp_to_torch} SRC DST [--allow-pickle]``.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import BroadcastingTorchSaveReader as StockReader

from cairn import mirror
from cairn.consent import pickle_allowed
from cairn.errors import Error, UnsafeContent
from cairn.protocol import load_by_protocol, save_by_protocol
from cairn.torch_file import load_torch_file

_PathLike = str | os.PathLike[str]


def dcp_to_torch_save(
    dcp_checkpoint_dir: _PathLike, torch_save_path: _PathLike, *, allow_pickle: bool | None = None
) -> None:
    """Writes all that a checkpoint holds to one file of ``torch.save``, tensors whole and on the CPU.

    Runs no code from the checkpoint unless `allow_pickle` lets values run what their pickles name. Raises UnsafeContent
    for a value that can't be read without, and then writes nothing.
    """
    state_dict: dict[str, Any] = {}
    planner: Any = _EmptyStateDictLoadPlanner
    load_by_protocol(
        state_dict,
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

    The file is read by the rules of ``torch.load(weights_only=True)``, and runs no code, unless `allow_pickle` lets it
    run what its pickle names. Raises UnsafeContent, Corrupt.
    """
    state_dict = load_torch_file(Path(torch_save_path), pickle_allowed(allow_pickle))
    save_by_protocol(state_dict, checkpoint_id=dcp_checkpoint_dir, no_dist=True, call="torch_save_to_dcp")


@mirror.stands_for_base
class BroadcastingTorchSaveReader(StockReader):
    """Reads a file of ``torch.save`` on one rank and sends its tensors to the others, for DynamicMetaLoadPlanner.

    Runs the code that the file names, as torch's class does: so it refuses to read, with UnsafeContent, unless
    `allow_pickle` is True (None: as cairn.consent has it). ``torch_save_to_dcp`` and ``cairn.load`` do the same
    work without running code.
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

    def read_data(self, plan: Any, planner: Any) -> Any:
        """As torch's, on every rank; raises UnsafeContent on every rank without consent."""
        if not pickle_allowed(self._allow_pickle):
            raise UnsafeContent(
                f"BroadcastingTorchSaveReader runs the code that '{self.checkpoint_id}' names; if you trust the file, "
                f"pass allow_pickle=True or set CAIRN_ALLOW_PICKLE=1; cairn.format_utils.torch_save_to_dcp and "
                f"cairn.load read it without running code",
                file=str(self.checkpoint_id),
            )
        return super().read_data(plan, planner)


_CONVERSIONS = {"torch_to_dcp": torch_save_to_dcp, "dcp_to_torch": dcp_to_torch_save}


def main(arguments: Sequence[str] | None = None) -> int:
    """The program. Returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m cairn.format_utils",
        description="Converts a checkpoint to one file of torch.save, or such a file to a checkpoint.",
    )
    parser.add_argument("mode", choices=sorted(_CONVERSIONS))
    parser.add_argument("src", help="what is read")
    parser.add_argument("dst", help="what is written")
    parser.add_argument("--allow-pickle", action="store_true", help="run the code that src names, if you trust it")
    given = parser.parse_args(arguments)
    try:
        _CONVERSIONS[given.mode](given.src, given.dst, allow_pickle=given.allow_pickle or None)
    except Error as error:
        print(f"cairn: {error}", file=sys.stderr)
        return 1
    return 0
