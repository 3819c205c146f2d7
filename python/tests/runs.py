"""A run of ten checkpoints, which tests of removals prune."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import cairn
from cairn.retention import PruneReport

DAY = 86_400


def save(directory: Path, value: float = 1.0) -> None:
    cairn.save({"w": torch.full((1000,), value)}, checkpoint_id=directory, no_dist=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten checkpoints of Cairn, step-1 to step-10, a day apart by the times of `.metadata`; the newest is of now."""
    folder = tmp_path_factory.mktemp("saved")
    now = int(time.time())  # exact differences
    for step in range(1, 11):
        save(folder / f"step-{step}", float(step))
        os.utime(folder / f"step-{step}" / ".metadata", (now - (10 - step) * DAY,) * 2)
    return folder


@pytest.fixture
def root(tmp_path: Path, saved: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "run")


def steps_in(root: Path) -> list[int]:
    """The steps of the checkpoints, all of which are good and hold the state of their step."""
    steps = []
    for directory in root.iterdir():
        if directory.is_symlink() or not (directory / ".metadata").exists():
            continue
        steps.append(int(directory.name.removeprefix("step-")))
        assert cairn.verify(directory)
        assert (cairn.read(directory)["w"] == steps[-1]).all()
    return sorted(steps)


def content_of(root: Path) -> dict[str, bytes]:
    """The content of each file, without the locks that a killed process leaves."""
    files = (file for file in root.rglob("*") if file.is_file() and file.name != ".cairn-lock")
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


def names_of(entries: Any) -> list[str]:
    return [Path(entry.directory).name for entry in entries]


def reasons_of(report: PruneReport) -> dict[str, str]:
    return {Path(kept.directory).name: kept.reason for kept in report.kept}


def pruned(root: Path, **rule: Any) -> PruneReport:
    """Prunes, after a dry run that must say the same and change nothing."""
    before = content_of(root)
    tried = cairn.prune(root, dry_run=True, **rule)
    assert content_of(root) == before
    done = cairn.prune(root, **rule)
    assert tried._replace(removed=(), problems=()) == done._replace(removed=(), problems=())
    assert done.removed == tried.removed
    assert list(map(str, tried.problems)) == list(map(str, done.problems))
    after = content_of(root)
    assert done.bytes == sum(map(len, before.values())) - sum(map(len, after.values()))
    assert sum(entry.files for entry in done.removed) == len(before) - len(after)
    assert bool(done) == (not done.problems)
    return done
