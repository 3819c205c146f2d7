"""Checkpoints with more data files than a process may have open."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import stock
import torch
from torch.distributed.checkpoint import FileSystemWriter

import cairn

FILE_COUNT = 3000
DESCRIPTORS = 256  # the soft limit of macOS, and of many containers


@pytest.fixture(params=["cairn", "torch"])
def many_files(request: pytest.FixtureRequest, checkpoint: Path) -> Path:
    state = {f"w{i}": torch.full((3,), float(i)) for i in range(FILE_COUNT)}
    if request.param == "cairn":
        cairn.save(
            state, storage_writer=cairn.FileSystemWriter(checkpoint, single_file_per_rank=False, sync_files=False)
        )
    else:
        stock.save(
            state,
            checkpoint,
            storage_writer=FileSystemWriter(checkpoint, single_file_per_rank=False, sync_files=False),
        )
    assert len(list(checkpoint.glob("*.distcp"))) == FILE_COUNT
    return checkpoint


@pytest.fixture
def few_descriptors(many_files: Path) -> Iterator[Path]:
    """The checkpoint, in a process with a low limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    yield many_files
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_are_loaded(few_descriptors: Path) -> None:
    state = {f"w{i}": torch.zeros(3) for i in range(FILE_COUNT)}
    cairn.load(state, checkpoint_id=few_descriptors)
    for i in range(FILE_COUNT):
        assert (state[f"w{i}"] == i).all(), i


def test_are_verified(few_descriptors: Path) -> None:
    report = cairn.verify(few_descriptors)
    assert not report.problems
    assert (report.files, report.tensors) == (FILE_COUNT, FILE_COUNT)


def test_are_read_one_by_one(few_descriptors: Path) -> None:
    opened = cairn.open(few_descriptors)
    for _ in range(2):
        for i in range(0, FILE_COUNT, 7):
            assert (opened[f"w{i}"] == i).all(), i
