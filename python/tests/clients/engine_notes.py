"""What ``cairn.report()`` said between two points of a client's program, written down for the tests."""

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
    """Makes this process a rank, as torchrun says."""
    dist.init_process_group("gloo")


def note(folder: Path, phase: str) -> None:
    """Writes the calls since the last note of this rank to `folder`."""
    news = []
    for entry in cairn.report().calls:
        key = (entry.call, entry.engine, entry.how)
        if entry.count > _seen.get(key, 0):
            news.append({**asdict(entry), "count": entry.count - _seen.get(key, 0)})
        _seen[key] = entry.count
    (folder / f"{phase}-{dist.get_rank()}.json").write_text(json.dumps(news))


def leave() -> NoReturn:
    """Ends the process. One that ends by itself is aborted at times: gloo has threads."""
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
