"""Failures of asynchronous saves that a later call reports: each failure once, on every rank that took part."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from saving_programs import no_commit_in
from torch.distributed.checkpoint.api import CheckpointException

import cairn
from cairn import AsyncCheckpointerType
from cairn._async import pending_saves

KINDS = [AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS]


@pytest.fixture(params=KINDS, ids=["thread", "process"])
def kind(request: pytest.FixtureRequest) -> Any:
    yield request.param
    pending_saves.wait_for()


def fail_together_and_alone(
    directory: Path, kind: Any, alone_first: bool, elsewhere: Path | None = None
) -> list[tuple[bool, bool]]:
    """A save of rank 0 alone and a save of all ranks fail. Returns the saves that each later call reports.

    `elsewhere` is the path of `directory` on all ranks but rank 0.
    """
    rank = dist.get_rank()
    joint, private = directory, directory.with_name("private")
    if rank != 0 and elsewhere is not None:
        joint = elsewhere
    state = {"t": torch.ones(3), "own": {rank: torch.ones(2)}}
    cairn.async_save(state, checkpoint_id=joint, async_checkpointer_type=kind).result()
    with contextlib.ExitStack() as private_fails:
        if rank == 0:
            cairn.save({"t": torch.ones(3)}, checkpoint_id=private, no_dist=True)
            private_fails.enter_context(no_commit_in(private))
            alone = cairn.async_save(
                {"t": torch.zeros(3)}, checkpoint_id=private, async_checkpointer_type=kind, no_dist=True
            )
            stock.save({"of": "another"}, private)
        with no_commit_in(joint) if rank == 0 else contextlib.nullcontext():
            dist.barrier()
            together: Any = cairn.async_save(state, checkpoint_id=joint, async_checkpointer_type=kind)
            if rank == 0:
                stock.save({"of": "another"}, joint)
        pending_saves.await_end(together)
        if alone_first and rank == 0:
            private_fails.close()
            pending_saves.await_end(alone)
        dist.barrier()
        calls = [what_a_save_reports(state, joint, kind)]
    pending_saves.wait_for()
    dist.barrier()
    return calls + [what_a_save_reports(state, joint, kind) for _ in range(2)]


def what_a_save_reports(state: dict[str, Any], directory: Path, kind: Any) -> tuple[bool, bool]:
    """Whether a save reports the failure of rank 0's private save, and whether it reports the failure of the joint
    save.
    """
    try:
        cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind).result()
    except CheckpointException as error:
        texts = [str(error), *(str(failure) for failure, _ in error.failures.values())]
        names = ("private", directory.name)
        private, joint = (any(f"/{name}', failed" in text for text in texts) for name in names)
        return private, joint
    return False, False


@pytest.fixture
def second_path(checkpoint: Path, tmp_path: Path) -> Iterator[Path]:
    """A second path of the directory `checkpoint`, by a second mount of its parent."""
    mount = tmp_path / "mount"
    mount.mkdir()
    command = ["mount", "--bind", str(checkpoint.parent), str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs root and the right to mount")
    yield mount / checkpoint.name
    subprocess.run(["umount", str(mount)], check=True)


def test_a_report_of_a_rank_that_has_the_directory_under_another_path_counts(
    three: Gang, checkpoint: Path, second_path: Path
) -> None:
    reports = [(True, True), (False, False), (False, False)]
    kind = AsyncCheckpointerType.THREAD
    for told in three.run(fail_together_and_alone, checkpoint, kind, True, second_path):
        assert told == reports


@pytest.mark.parametrize("alone_first", [False, True])
def test_failures_of_one_rank_and_of_all_are_reported_once_each(
    three: Gang, checkpoint: Path, kind: Any, alone_first: bool
) -> None:
    reports = [(True, True), (False, False)] if alone_first else [(False, True), (True, False)]
    for told in three.run(fail_together_and_alone, checkpoint, kind, alone_first):
        assert told == [*reports, (False, False)]
