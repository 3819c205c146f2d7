"""The calls and states of a client's program, written to files by its processes for the tests.

The witness wraps the engine's calls, not Cairn's own functions: `cairn.install` and the client must find Cairn's own
functions unchanged.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from cairn import _engine

_saved: list[str] = []
_loaded: list[str] = []
_save, _write_share, _open, _load = _engine.save, _engine.write_share, _engine.open, _engine.Checkpoint.load
_opened: list[tuple[_engine.Checkpoint, str]] = []  # not yet loaded from; the references prevent a reused id


def _watched_save(directory: bytes, *arguments: Any, **options: Any) -> Any:
    result = _save(directory, *arguments, **options)
    _saved.append(os.fsdecode(directory))
    return result


def _watched_write_share(directory: bytes, *arguments: Any, **options: Any) -> Any:
    """Notes the directory of a rank's share of a save driven by torch."""
    result = _write_share(directory, *arguments, **options)
    _saved.append(os.fsdecode(directory))
    return result


def _watched_open(directory: bytes, *arguments: Any, **options: Any) -> _engine.Checkpoint:
    checkpoint = _open(directory, *arguments, **options)
    _opened.append((checkpoint, os.fsdecode(directory)))
    return checkpoint


def _watched_load(checkpoint: _engine.Checkpoint, *arguments: Any, **options: Any) -> Any:
    result = _load(checkpoint, *arguments, **options)
    for at, (opened, directory) in enumerate(_opened):
        if opened is checkpoint:  # only the first engine call of a load is noted
            _loaded.append(directory)
            del _opened[at]
            break
    return result


class Witness:
    """Takes notes in `folder`. A program makes its witness before the first save or load."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls: dict[str, list[list[str]]] = {}
        _engine.save, _engine.write_share, _engine.open = _watched_save, _watched_write_share, _watched_open
        _engine.Checkpoint.load = _watched_load  # type: ignore[method-assign, assignment]

    def note(self, phase: str, state: Any) -> None:
        """Writes rank 0's `state`, and notes each rank's saves and loads since the last note.

        Noted are the directories given to the engine, relative to the folder.
        """
        if dist.get_rank() == 0:
            torch.save(state, self._folder / f"{phase}.state")
        self._calls[phase] = [[os.path.relpath(path, self._folder) for path in paths] for paths in (_saved, _loaded)]
        _saved.clear()
        _loaded.clear()

    def leave(self) -> NoReturn:
        """Writes the notes and ends the process by `os._exit`.

        Gloo's threads sometimes abort a process that exits normally.
        """
        rank, ranks = dist.get_rank(), dist.get_world_size()
        (self._folder / f"calls-{rank}-of-{ranks}.json").write_text(json.dumps(self._calls))
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
