"""`cairn.clean` and `cairn clean`: what is removed of saves that a SIGKILL has ended, and what stays."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import preloaded
import pytest
import stock
import torch
from tool import OK, UNREADABLE, json_of, run, text_of

import cairn
from cairn import _engine

# Kills the process at its commit: all files are written then.
KILLED_COMMIT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

int renameat(int old_folder, const char* old_name, int folder, const char* name) {
  if (strcmp(name, ".metadata") == 0 || strcmp(name, "model.safetensors.index.json") == 0) kill(getpid(), SIGKILL);
  int (*real)(int, const char*, int, const char*) = dlsym(RTLD_NEXT, "renameat");
  return real(old_folder, old_name, folder, name);
}
"""
SAVE = """
import sys, torch, cairn
cairn.save({"w": torch.ones(1_000_000)}, checkpoint_id=sys.argv[1], no_dist=True)
"""
SAVE_MODEL = """
import sys, torch, cairn
writer = cairn.HuggingFaceStorageWriter(sys.argv[1], fqn_to_index_mapping={"v": 1, "w": 2})
cairn.save({"v": torch.ones(9), "w": torch.ones(1_000_000)}, storage_writer=writer, no_dist=True)
"""


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories `checkpoint` and `model` with a dead save, and `overwrite` with a checkpoint and a dead save.

    A copy of a dead save is a dead save."""
    folder = tmp_path_factory.mktemp("dead")
    environment = {**os.environ, "LD_PRELOAD": str(preloaded.library(KILLED_COMMIT, folder))}
    save(folder / "overwrite")
    for name, program in (("checkpoint", SAVE), ("overwrite", SAVE), ("model", SAVE_MODEL)):
        command = [sys.executable, "-c", program, os.fspath(folder / name)]
        killed = subprocess.run(command, check=False, timeout=120, capture_output=True, env=environment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        (found,) = cairn.saves_in_flight(folder / name)
        assert found.is_leftover
    return folder


def leave_dead_save(directory: Path, dead: Path, form: str = "checkpoint") -> None:
    shutil.copytree(dead / form, directory, dirs_exist_ok=True)


def save(directory: Path) -> None:
    cairn.save({"w": torch.ones(1000)}, checkpoint_id=directory, no_dist=True)


def content_of(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@contextmanager
def another_user() -> Iterator[None]:
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_the_dead_saves_of_siblings_are_removed_and_nothing_else(tmp_path: Path, dead: Path) -> None:
    root = tmp_path / "run"
    stock.save({"w": torch.ones(1000)}, root / "stock")
    leave_dead_save(root / "step-1", dead, "overwrite")
    (root / "step-1" / "notes.txt").write_text("foreign")
    alive = _engine.SaveClaim(os.fsencode(root / "step-3"), overwrite=True, durable=True)
    leave_dead_save(root / "step-2", dead)
    (told,) = [line for line in text_of("status", root).splitlines() if str(root / "step-2") in line]
    assert told.endswith(f"died: 'cairn clean {root / 'step-2'}' removes its files")

    before = content_of(root)
    tried = cairn.clean(root, dry_run=True)
    assert content_of(root) == before
    cleaned = cairn.clean(root)
    assert cleaned == tried
    assert cleaned
    assert {(save.directory, len(save.files) > 0) for save in cleaned.saves} == {
        (os.fspath(root / name), True) for name in ("step-1", "step-2")
    }
    assert cleaned.nbytes == sum(save.nbytes for save in cleaned.saves) > 8_000_000
    after = content_of(root)
    assert not [name for name in after if ".cairn-" in name and not name.startswith("step-3")]
    assert {name: before[name] for name in after if "lease" not in name} == {
        name: content for name, content in after.items() if "lease" not in name
    }
    assert {"step-1/.metadata", "step-1/notes.txt", "stock/.metadata"} < set(after)
    assert [save.directory for save in cairn.saves_in_flight(root)] == [os.fspath(root / "step-3")]
    assert cairn.verify(root / "step-1")
    assert cairn.verify(root / "stock")
    assert cairn.clean(root).saves == ()
    alive.withdraw()


def test_the_tool_prints_the_removed_saves_and_bytes(tmp_path: Path, dead: Path) -> None:
    leave_dead_save(tmp_path / "step-1", dead)
    leave_dead_save(tmp_path / "model", dead, "model")
    before = content_of(tmp_path)
    tried = json_of("clean", tmp_path, "--dry-run")
    assert (tried["dry_run"], len(tried["saves"])) == (True, 2)
    assert "would remove 2 dead saves, " in text_of("clean", tmp_path, "--dry-run")
    assert content_of(tmp_path) == before
    done = text_of("clean", tmp_path)
    assert done.splitlines()[-1].startswith("removed 2 dead saves, ")
    assert done.splitlines()[-1].endswith(" MiB")
    assert tried["bytes"] == sum(len(content) for content in before.values())
    assert content_of(tmp_path) == {}
    assert text_of("clean", tmp_path) == "no dead save\n"
    assert run("clean", tmp_path / "missing").returncode == UNREADABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_the_save_of_another_user_stays(tmp_path: Path, dead: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents):  # up to pytest's base folder, which only root may enter
        if directory.stat().st_uid == 0 and directory.stat().st_mode & 0o7 == 0:
            directory.chmod(0o711)
    root = tmp_path / "shared"
    leave_dead_save(root / "step-1", dead)
    root.chmod(0o777)
    (root / "step-1").chmod(0o777)
    before = content_of(root)
    with another_user():
        report = cairn.clean(root)
    assert (report.saves, report.problems) == ((), ())
    (warning,) = report.warnings
    assert "belongs to a different user" in warning
    assert content_of(root) == before
    (root / "step-1").chmod(0o755)
    for path in (root / "step-1").rglob("*"):
        os.chown(path, 65534, 65534)
    with another_user():  # the files are the user's, the directory is not
        report = cairn.clean(root)
    assert not report
    assert {name for name in before if name.endswith((".distcp", "lease"))} <= set(content_of(root))
    (root / "step-1").chmod(0o777)
    with another_user():
        assert cairn.clean(root)
    assert content_of(root) == {}


def test_a_read_only_root_is_a_problem(tmp_path: Path, dead: Path) -> None:
    image = tmp_path / "mounted"
    image.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(image)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs root, to mount a file system")
    try:
        leave_dead_save(image / "step-1", dead)
        before = content_of(image)
        subprocess.run(["mount", "-o", "remount,ro", str(image)], check=True)
        assert len(cairn.clean(image, dry_run=True).saves) == 1
        report = cairn.clean(image)
        (problem,) = report.problems
        assert isinstance(problem, cairn.UnusableDirectory)
        assert str(image / "step-1") in str(problem)
        assert content_of(image) == before
        assert run("clean", image).returncode == UNREADABLE
        subprocess.run(["mount", "-o", "remount,rw", str(image)], check=True)
        assert run("clean", image).returncode == OK
        assert content_of(image) == {}
    finally:
        subprocess.run(["umount", "--lazy", str(image)], check=True)
