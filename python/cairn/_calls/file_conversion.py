"""Cairn's own part of ``cairn.format_utils``: conversion of a checkpoint to one file of ``torch.save``, and back.

torch's functions of these names unpickle ``.metadata``, every value and the whole file, and thereby run the code that
the pickles name. Cairn's functions have torch's arguments and `allow_pickle`, as in ``cairn.load``: without
`allow_pickle` the functions run nothing from the files, and raise UnsafeContent for content that can't be read without
running code.

As a program: ``python -m cairn.format_utils {torch_to_dcp,dcp_to_torch} SRC DST [--allow-pickle]``.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import BroadcastingTorchSaveReader as StockReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.futures import Future

from cairn import _engine
from cairn._calls.torch_driver import load_by_protocol, save_by_protocol
from cairn._calls.torch_save_tensors import ReadingTogether, boxes_of, read_alone
from cairn._mirror import replacements
from cairn._settings.consent import pickle_allowed
from cairn._state.torch_file import load_torch_file
from cairn._telemetry import engine_use
from cairn.conversion import convert
from cairn.errors import Error, InvalidArgument, NotFound, Unsupported

_PathLike = str | os.PathLike[str]


def dcp_to_torch_save(
    dcp_checkpoint_dir: _PathLike, torch_save_path: _PathLike, *, allow_pickle: bool | None = None
) -> None:
    """Writes the whole content of a checkpoint to one file of ``torch.save``, tensors whole and on the CPU.

    The file gets its name when it is whole and synced; until then a file of this name stays as it is. Runs no code from
    the checkpoint unless `allow_pickle` allows the code that the values' pickles name. Raises UnsafeContent for a value
    that needs `allow_pickle`, Corrupt, and then writes nothing.

    The tensors are streamed, with a few buffers of 4 MiB for each thread. With `allow_pickle`, and for values that only
    torch can read, the whole content is loaded first.
    """
    if Path(dcp_checkpoint_dir).is_dir() and not pickle_allowed(allow_pickle):
        with contextlib.suppress(Unsupported):  # a value that only torch can read: the rules of torch follow
            convert(dcp_checkpoint_dir, torch_save_path, to="torch", overwrite=True)
            engine_use.note("dcp_to_torch_save", dcp_checkpoint_dir)
            return
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
    _save_whole(state_dict, Path(torch_save_path))


def torch_save_to_dcp(
    torch_save_path: _PathLike, dcp_checkpoint_dir: _PathLike, *, allow_pickle: bool | None = None
) -> None:
    """Saves the state dict in a file of ``torch.save`` as a checkpoint.

    Every record of the file is first compared with its checksum; the legacy format has none. The file is read by the
    rules of ``torch.load(weights_only=True)``, memory-mapped, and runs no code, unless `allow_pickle` allows the code
    that the file's pickle names. Raises UnsafeContent, Corrupt, and then saves nothing.

    The tensors are streamed, with a few buffers of 4 MiB for each thread. With `allow_pickle`, and for values that only
    torch can read, torch maps the file and Cairn saves the state.
    """
    is_file = Path(torch_save_path).is_file()  # opening a pipe would wait for the pipe's writer
    if is_file and not pickle_allowed(allow_pickle):
        with contextlib.suppress(Unsupported):
            convert(torch_save_path, dcp_checkpoint_dir, to="dcp", overwrite=True)
            engine_use.note("torch_save_to_dcp", dcp_checkpoint_dir)
            return
    _check_records(Path(torch_save_path))
    state_dict = load_torch_file(Path(torch_save_path), pickle_allowed(allow_pickle))
    save_by_protocol(lambda: state_dict, checkpoint_id=dcp_checkpoint_dir, no_dist=True, call="torch_save_to_dcp")


def _save_whole(state_dict: dict[str, Any], file: Path) -> None:
    """Saves under a private name in the directory of `file`, syncs, and renames. Removes the private file after a
    failure."""
    private = file.with_name(f".{file.name}.cairn-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with private.open("xb") as stream:
            torch.save(state_dict, stream)
            stream.flush()
            os.fsync(stream.fileno())
        private.replace(file)
    except BaseException:
        private.unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_records(file: Path) -> None:
    """Raises the first damage that the checksums of the file show. Passes a file that the engine does not read: the
    error of torch's rules follows."""
    with contextlib.suppress(NotFound, Unsupported):
        for problem in _engine.verify(os.fsencode(file), 4, False)["problems"]:
            raise problem


@replacements.stands_for_base
class BroadcastingTorchSaveReader(StockReader):
    """Reads tensors of a file of ``torch.save`` into the state dicts of all ranks, for DynamicMetaLoadPlanner.

    Where all ranks see the file, each rank reads only its own boxes. Where only the coordinator sees it, the
    coordinator reads each tensor once, and sends each rank only that rank's boxes. Distributed tensors are filled, and
    each rank may load other keys than the rest. If a rank fails, the load fails on all ranks.

    Nothing from the file runs. A tensor of a class of the caller needs `allow_pickle` (None: as in ``cairn.load``).
    A checksum is compared wherever a whole record is read.
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

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """As torch's; a process alone needs no process group."""
        if dist.is_initialized():
            super().set_up_storage_reader(metadata, is_coordinator)
            return
        self.is_coordinator = is_coordinator
        if self.checkpoint_id is None:
            raise InvalidArgument(f"{type(self).__name__} needs a checkpoint_id")

    def read_data(self, plan: LoadPlan, planner: Any) -> "Future[None]":
        """Fills the planner's tensors. A failure raises on all ranks."""
        file = Path(os.fspath(self.checkpoint_id or ""))
        allow_pickle = pickle_allowed(self._allow_pickle)
        if dist.is_initialized() and dist.get_world_size() > 1:
            ReadingTogether(file, allow_pickle, self.coordinator_rank).run(plan, planner)
        else:
            read_alone(file, allow_pickle, boxes_of(plan, planner), planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future


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
