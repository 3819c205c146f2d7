"""Full, read-only and failing disks: the old checkpoint stays, no new file stays, the error names the cause."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import preloaded
import pytest
import stock
import torch
from same import assert_same

import cairn
from cairn import AsyncCheckpointerType
from cairn._async import pending_saves

OLD = {"w": torch.arange(1000.0), "step": 1}
LARGE = {"w": torch.arange(4_000_000.0), "step": 2}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs root and the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def assert_old_state(directory: Path, before: dict[str, bytes]) -> None:
    assert tree(directory) == before
    assert [path.name for path in directory.iterdir() if path.is_dir()] == []
    for load in (stock.load, lambda state, path: cairn.load(state, checkpoint_id=path)):
        state: dict[str, Any] = {"w": torch.zeros(1000), "step": 0}
        load(state, directory)
        assert_same(state, OLD)


@pytest.mark.parametrize("first", ["cairn", "torch"])
def test_full_disk(first: str, small_disk: Path) -> None:
    directory = small_disk / "checkpoint"
    if first == "cairn":
        cairn.save(OLD, checkpoint_id=directory)
    else:
        stock.save(OLD, directory)
    before = tree(directory)
    for _ in range(2):
        with pytest.raises(cairn.NoSpace) as caught:
            cairn.save(LARGE, checkpoint_id=directory)
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.file
        assert f"saving to '{directory}'" in str(caught.value)
        needed = re.fullmatch(r"room for (\d+) bytes", caught.value.expected or "")
        free = re.fullmatch(r"(\d+) bytes free in the file system of '(.+)'", caught.value.actual or "")
        assert needed, str(caught.value)
        assert free, str(caught.value)
        assert int(needed[1]) > int(free[1]) > 0
        assert Path(free[2]).parent == directory, "the save's own folder, also where no text names the directory"
        assert_old_state(directory, before)
    assert shutil.disk_usage(small_disk).free > 7 << 20


@pytest.mark.parametrize("kind", [AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS])
def test_full_disk_in_the_background(kind: Any, small_disk: Path) -> None:
    directory, other = small_disk / "checkpoint", small_disk / "other"
    cairn.save(OLD, checkpoint_id=directory)
    before = tree(directory)
    error = cairn.async_save(LARGE, checkpoint_id=directory, async_checkpointer_type=kind).exception()
    assert isinstance(error, cairn.NoSpace)
    assert error.errno == errno.ENOSPC
    assert str(error).count(f"saving to '{directory}'") == 1
    cairn.async_save(LARGE, checkpoint_id=directory, async_checkpointer_type=kind)
    pending_saves.wait_for()
    with pytest.raises(cairn.Error) as caught:
        cairn.async_save(OLD, checkpoint_id=other, async_checkpointer_type=kind)
    assert f"saving to '{directory}'" in str(caught.value)
    assert f"saving to '{other}'" not in str(caught.value), "the error is the earlier save's"
    assert_old_state(directory, before)


def test_full_disk_and_a_new_directory(small_disk: Path) -> None:
    with pytest.raises(cairn.NoSpace):
        cairn.save(LARGE, checkpoint_id=small_disk / "checkpoint")
    assert tree(small_disk) == {}
    with pytest.raises(cairn.NotFound):
        cairn.open(small_disk / "checkpoint")


def test_read_only_file_system(small_disk: Path) -> None:
    directory = small_disk / "checkpoint"
    cairn.save(OLD, checkpoint_id=directory)
    before = tree(directory)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for target in (directory, small_disk / "new"):
        with pytest.raises(cairn.UnusableDirectory, match="mounted for writing") as caught:
            cairn.save(OLD, checkpoint_id=target)
        assert caught.value.errno == errno.EROFS
    assert_old_state(directory, before)
    assert cairn.verify(directory)


CHILD = """
import os, resource, sys
import torch, cairn
save = cairn.save  # imports all that it needs
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
if sys.argv[2] == "uid":
    os.setgid(65534)
    os.setuid(65534)
os.environ["FAIL_NOW"] = "1"
try:
    save({"w": torch.arange(4_000_000.0), "step": 2}, checkpoint_id=sys.argv[1])
except OSError as error:
    assert isinstance(error, (cairn.Unavailable, cairn.NoSpace)), repr(error)
    print(error.errno, error)
"""


def errno_of_failed_save(directory: Path, what: str, **environment: str) -> int:
    """Returns the errno of a save that fails in its own process."""
    command = [sys.executable, "-c", CHILD, str(directory), what]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "the save succeeded"
    return int(done.stdout.split()[0])


def test_file_size_limit(checkpoint: Path) -> None:
    cairn.save(OLD, checkpoint_id=checkpoint)
    before = tree(checkpoint)
    assert errno_of_failed_save(checkpoint, "limit") == errno.EFBIG
    assert_old_state(checkpoint, before)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_directory_of_another_user(checkpoint: Path) -> None:
    cairn.save(OLD, checkpoint_id=checkpoint)
    before = tree(checkpoint)
    for parent in [checkpoint, *checkpoint.parents][:4]:
        parent.chmod(0o755)
    assert errno_of_failed_save(checkpoint, "uid") == errno.EACCES
    assert_old_state(checkpoint, before)


# fsync, fdatasync and sync_file_range fail with EIO while FAIL_NOW is set.
SHIM = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#define FAILS(call, ...) \\
  int call(__VA_ARGS__) { if (getenv("FAIL_NOW")) { errno = EIO; return -1; } return 0; }
FAILS(fsync, int fd)
FAILS(fdatasync, int fd)
FAILS(sync_file_range, int fd, long offset, long count, unsigned flags)
"""


def test_failing_fsync(checkpoint: Path, tmp_path: Path) -> None:
    shim = preloaded.library(SHIM, tmp_path)
    cairn.save(OLD, checkpoint_id=checkpoint)
    before = tree(checkpoint)
    assert errno_of_failed_save(checkpoint, "fsync", LD_PRELOAD=str(shim)) == errno.EIO
    assert_old_state(checkpoint, before)
