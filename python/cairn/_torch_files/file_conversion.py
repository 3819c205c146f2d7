"""Cairn's own part of ``cairn.format_utils``: conversion of a checkpoint to one file of ``torch.save``, and back.

torch's functions of these names unpickle ``.metadata``, every value and the whole file, and thereby run the code that
the pickles name. Cairn's functions have torch's arguments and `allow_pickle`, as in ``cairn.load``: without
`allow_pickle` the functions run nothing from the files, and raise UnsafeContent for content that can't be read without
running code.

As a program: ``python -m cairn.format_utils {torch_to_dcp,dcp_to_torch} SRC DST [--allow-pickle] [--follow-links]``.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import BroadcastingTorchSaveReader as StockReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.futures import Future

from cairn import _engine
from cairn._calls.arguments import Call
from cairn._calls.torch_driver import load_by_protocol, save_by_protocol
from cairn._directory import open_checkpoint
from cairn._settings import links_followed, pickle_allowed
from cairn._state.values import load_value
from cairn._telemetry import engine_use
from cairn._torch_files.torch_file import load_torch_file
from cairn._torch_files.torch_save_tensors import ReadingTogether, boxes_of, read_alone
from cairn._torch_files.whole_file import save_whole
from cairn._torch_names import replacements
from cairn.conversion import Format, convert
from cairn.errors import Error, InvalidArgument, NotFound, UnsafeContent, Unsupported

_PathLike = str | os.PathLike[str]


def dcp_to_torch_save(
    dcp_checkpoint_dir: _PathLike,
    torch_save_path: _PathLike,
    *,
    allow_pickle: bool | None = None,
    follow_links: bool | None = None,
) -> None:
    """Writes the whole content of a checkpoint to one file of ``torch.save``, tensors whole and on the CPU.

    The file gets its name when it is whole and synced; until then a file of this name stays as it is. If
    `torch_save_path` is a symbolic link, the link stays, and the file that the link names is written. Runs no code from
    the checkpoint unless `allow_pickle` allows the code that the values' pickles name. `follow_links`: whether data
    files of the checkpoint may be symbolic links. Raises NotFound if there is no checkpoint, or no directory for the
    file; UnsafeContent for a value that needs `allow_pickle`; Corrupt; and then writes nothing.

    The tensors are streamed, with a few buffers of 4 MiB for each thread. With `allow_pickle`, and for values that only
    torch can read, the whole content is loaded first.
    """
    target = Path(os.path.realpath(torch_save_path))
    if not target.parent.is_dir():
        raise NotFound(f"there is no directory '{target.parent}'", file=str(torch_save_path))
    is_plain = Path(dcp_checkpoint_dir).is_dir() and not pickle_allowed(allow_pickle)
    if is_plain and _converted(dcp_checkpoint_dir, target, "torch", follow_links):
        engine_use.note("dcp_to_torch_save", dcp_checkpoint_dir)
        return
    state_dict: dict[str, Any] = {}
    planner: Any = _EmptyStateDictLoadPlanner
    load_by_protocol(
        lambda: state_dict,
        Call(dcp_checkpoint_dir, planner=planner(), no_dist=True, function="dcp_to_torch_save"),
        allow_pickle=pickle_allowed(allow_pickle),
        follow_links=links_followed(follow_links),
    )
    save_whole(state_dict, target)


def torch_save_to_dcp(
    torch_save_path: _PathLike, dcp_checkpoint_dir: _PathLike, *, allow_pickle: bool | None = None
) -> None:
    """Saves the state dict in a file of ``torch.save`` as a checkpoint.

    Every record of the file is compared with its checksum; the legacy format has none. The file is read by the rules of
    ``torch.load(weights_only=True)`` and runs no code, unless `allow_pickle` allows the code that the file's pickle
    names. Raises UnsafeContent, with key and class where the file has a state dict; Corrupt; Unsupported if the file
    holds no state dict; InvalidArgument if two entries have one flat key; and then saves nothing.

    The tensors are streamed, with a few buffers of 4 MiB for each thread. With `allow_pickle`, and for values that only
    torch can read, torch reads the file, memory-mapped if no record is compressed, and Cairn saves the state.
    """
    file = Path(torch_save_path)
    is_file = file.is_file()  # opening a pipe would wait for the pipe's writer
    if is_file and not pickle_allowed(allow_pickle) and _converted(torch_save_path, dcp_checkpoint_dir, "dcp"):
        engine_use.note("torch_save_to_dcp", dcp_checkpoint_dir)
        return
    try:
        state_dict = load_torch_file(file, pickle_allowed(allow_pickle))
    except UnsafeContent as error:
        raise (_refused_value(file) if is_file else None) or error from error
    _check_state_dict(state_dict, file)
    with _removing_made_directories(Path(dcp_checkpoint_dir)):
        call = Call(dcp_checkpoint_dir, no_dist=True, function="torch_save_to_dcp")
        save_by_protocol(lambda: state_dict, call)


@contextlib.contextmanager
def _removing_made_directories(directory: Path) -> Iterator[None]:
    """Removes the directories that the block has made, and has left empty, if the block fails."""
    missing = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for made in missing:
                made.rmdir()
        raise


def _converted(source: _PathLike, target: _PathLike, to: Format, follow_links: bool | None = None) -> bool:
    """Converts on the engine. False, with `target` as before, for a value that is not plain data: torch may be able to
    read the value without running code."""
    try:
        convert(
            source,
            target,
            to=to,
            keep_shape=False,
            overwrite=True,
            overwrite_any_file=True,
            allow_pickle=False,
            follow_links=follow_links,
        )
    except Unsupported:
        return False
    except UnsafeContent as error:
        if error.expected != "plain data":
            raise
        return False
    return True


def _refused_value(file: Path) -> UnsafeContent | None:
    """Returns the error for the first value of the file that needs code, which names key and class. None if the engine
    does not read the file."""
    try:
        checkpoint = open_checkpoint(file)
        catalog = _engine.catalog_of(checkpoint)
        for key in catalog.keys():  # noqa: SIM118 - no mapping
            if catalog.tensor(key) is None:
                load_value(key, checkpoint.read_payload(key), False, "cpu")
    except UnsafeContent as error:
        return error
    except Error:
        pass
    return None


def _check_state_dict(state_dict: Any, file: Path) -> None:
    if not isinstance(state_dict, Mapping):
        raise Unsupported(
            f"{file.name} holds no state dict; torch.load reads it",
            file=file.name,
            expected="a dict",
            actual=type(state_dict).__name__,
        )
    try:
        flatten_state_dict(dict(state_dict))
    except ValueError as error:  # torch names the key
        raise InvalidArgument(f"two entries of {file.name} have one flat key: {error}", file=file.name) from error


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m cairn.format_utils",
        description="Converts a checkpoint to one file of torch.save, or such a file to a checkpoint.",
    )
    parser.add_argument("mode", choices=["dcp_to_torch", "torch_to_dcp"])
    parser.add_argument("src", help="the checkpoint or file to read")
    parser.add_argument("dst", help="the file or checkpoint to write")
    parser.add_argument("--allow-pickle", action="store_true", help="run the code that src names, if you trust it")
    parser.add_argument(
        "--follow-links", action="store_true", help="read data files of a checkpoint that are symbolic links"
    )
    given = parser.parse_args(arguments)
    allow_pickle = given.allow_pickle or None
    try:
        if given.mode == "dcp_to_torch":
            dcp_to_torch_save(given.src, given.dst, allow_pickle=allow_pickle, follow_links=given.follow_links)
        else:
            torch_save_to_dcp(given.src, given.dst, allow_pickle=allow_pickle)
    except (Error, OSError) as error:
        print(f"cairn: {error}", file=sys.stderr)
        return 1
    except CheckpointException as error:  # of torch's driver: the failures by rank, with their tracebacks
        causes = [wrapped[0] for wrapped in error.failures.values()]
        print(f"cairn: {'; '.join(str(cause) for cause in causes) or error}", file=sys.stderr)
        return 1
    return 0
