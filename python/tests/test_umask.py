"""The permissions of an asynchronous save's files follow the trainer's umask at the time of the call."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import cairn


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("kind", list(cairn.AsyncCheckpointerType))
def test_the_umask_of_each_call_counts(kind: cairn.AsyncCheckpointerType, tmp_path: Path) -> None:
    """The writer process started under a different umask, and the trainer changes its umask while saves run."""
    state = {"w": torch.ones(1 << 16)}
    saves = []
    for number, mask in enumerate((0o022, 0o077, 0o002)):
        directory = tmp_path / str(number)
        with umask(mask):
            future = cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind)
        saves.append((mask, directory, future))
    for mask, directory, future in saves:
        future.result()
        assert directory.stat().st_mode & 0o777 == 0o777 & ~mask
        files = list(directory.iterdir())
        assert len(files) == 2
        for file in files:
            assert file.stat().st_mode & 0o777 == 0o666 & ~mask, file
