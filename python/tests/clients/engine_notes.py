"""The calls that ``cairn.report()`` counts between two points of a client's program, written to files for the tests."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

import cairn

_seen: dict[tuple[str, bool, str], int] = {}


def start() -> None:
    """Makes the process a rank of a gloo group. The environment, set by torchrun, gives rank and address."""
    dist.init_process_group("gloo")


def note(folder: Path, phase: str) -> None:
    """Writes the calls since this rank's last note to `folder`."""
    news = []
    for entry in cairn.report().calls:
        key = (entry.call, entry.engine, entry.how)
        if entry.count > _seen.get(key, 0):
            news.append({**asdict(entry), "count": entry.count - _seen.get(key, 0)})
        _seen[key] = entry.count
    (folder / f"{phase}-{dist.get_rank()}.json").write_text(json.dumps(news))


def leave() -> NoReturn:
    """Ends the process by `os._exit`: gloo's threads sometimes abort a process that exits normally."""
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
