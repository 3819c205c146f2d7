"""Memory prepared for the first asynchronous save: when, how much, and when not."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import cairn
from cairn import _process
from cairn._async.async_saver import AsyncSaver, DefaultSavers
from cairn._async.preparation import Preparation
from cairn._process import part
from cairn.checkpointer import make_async_checkpointer, make_sync_checkpointer
from cairn.staging import BlockingAsyncStager, DefaultStager, StagingOptions

SIZE = 48 << 20
PAGES = SIZE // 4096


def state_of(value: float) -> dict[str, Any]:
    return {f"w{i}": torch.full((SIZE // 4 // 4,), value + i, dtype=torch.float32) for i in range(4)}


@pytest.fixture
def saved(checkpoint: Path) -> Path:
    cairn.save(state_of(1), checkpoint_id=checkpoint)
    return checkpoint


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process has declared, loaded and saved nothing."""
    kept = {kind: own for kind, own in _process._process._parts.items() if kind not in (Preparation, DefaultSavers)}
    monkeypatch.setattr(_process._process, "_parts", kept)
    yield
    for saver in part(DefaultSavers).by_process.values():
        saver.close()


def declare_by_stager() -> None:
    DefaultStager(StagingOptions(False, False, False, False))


def declare_by_install() -> None:
    cairn.install(async_checkpointer_type=cairn.AsyncCheckpointerType.PROCESS)


def wait_for_memory(saver: AsyncSaver, least: int = SIZE) -> None:
    until = time.monotonic() + 240
    while saver.prepared_bytes < least:
        assert time.monotonic() < until, saver.prepared_bytes
        time.sleep(0.01)


def loaded(directory: Path) -> dict[str, Any]:
    state = state_of(0)
    cairn.load(state, checkpoint_id=directory)
    return state


@pytest.mark.parametrize("declare_first", [True, False])
def test_a_declared_program_has_memory_after_a_load(saved: Path, tmp_path: Path, declare_first: bool) -> None:
    if declare_first:
        declare_by_stager()
    state = loaded(saved)
    if not declare_first:
        assert not part(DefaultSavers).by_process
        BlockingAsyncStager()
    saver = part(DefaultSavers).by_process[False]
    wait_for_memory(saver)
    assert saver.prepared_bytes < SIZE * 5 // 4 + (8 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    future = cairn.async_save(state, checkpoint_id=tmp_path / "next")
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < PAGES // 4  # of fresh pages each would fault, or be populated
    future.result()
    assert torch.equal(loaded(tmp_path / "next")["w3"], state["w3"])


def test_the_writer_process_is_ready_after_a_load(saved: Path, tmp_path: Path) -> None:
    try:
        declare_by_install()
        state = loaded(saved)
        saver = part(DefaultSavers).by_process[True]
        wait_for_memory(saver)
        pid = saver.writer_pid
        assert pid
        future: Any = dcp.state_dict_saver.async_save(state, checkpoint_id=str(tmp_path / "next"))
        future.result()
        assert saver.writer_pid == pid
    finally:
        cairn.uninstall()


def test_a_save_by_the_other_kind_of_writer_uses_the_memory(saved: Path, tmp_path: Path) -> None:
    declare_by_stager()
    state = loaded(saved)
    wait_for_memory(part(DefaultSavers).by_process[False])
    kind = cairn.AsyncCheckpointerType.PROCESS
    future = cairn.async_save(state, checkpoint_id=tmp_path / "next", async_checkpointer_type=kind)
    assert part(DefaultSavers).by_process[False].prepared_bytes < SIZE  # the save holds the arena
    future.result()


def test_new_settings_keep_the_memory(saved: Path) -> None:
    declare_by_stager()
    loaded(saved)
    cairn.configure_async_saves()
    wait_for_memory(part(DefaultSavers).by_process[False])


@pytest.mark.parametrize("factor", [0.1, 3])
def test_a_state_of_another_size_is_saved(saved: Path, tmp_path: Path, factor: float) -> None:
    declare_by_stager()
    loaded(saved)
    other = {"w": torch.arange(int(SIZE * factor / 8))}  # at once: while the memory is being prepared
    cairn.async_save(other, checkpoint_id=tmp_path / "next").result()
    target = {"w": torch.zeros_like(other["w"])}
    cairn.load(target, checkpoint_id=tmp_path / "next")
    assert torch.equal(target["w"], other["w"])


def test_loads_of_one_checkpoint_count_together(saved: Path) -> None:
    declare_by_stager()
    for keys in (("w0", "w1"), ("w2", "w3"), ("w0", "w1"), ("w0",), ("w2", "w3")):
        whole = state_of(0)
        cairn.load({key: whole[key] for key in keys}, checkpoint_id=saved)
    saver = part(DefaultSavers).by_process[False]
    wait_for_memory(saver)
    assert saver.prepared_bytes < SIZE * 5 // 4  # a repeated load counts once


def test_a_program_that_declares_nothing_has_no_memory(saved: Path, tmp_path: Path) -> None:
    cairn.install()
    try:
        state = loaded(saved)
        cairn.FileSystemWriter(tmp_path / "other")  # a stager, but also the storage of synchronous saves
        cairn.save(state, checkpoint_id=tmp_path / "next")
    finally:
        cairn.uninstall()
    assert not part(DefaultSavers).by_process


def test_the_environment_turns_the_preparation_off(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(AsyncSaver, "prepare_ahead", lambda _self, size, _idle_seconds: asked.append(size))
    declare_by_stager()
    monkeypatch.setenv("CAIRN_PREPARE_AFTER_LOAD", "0")
    loaded(saved)
    assert not asked
    monkeypatch.setenv("CAIRN_PREPARE_AFTER_LOAD", "1")
    loaded(saved)
    assert [size >= SIZE for size in asked] == [True]


def test_only_an_async_checkpointer_prepares(tmp_path: Path) -> None:
    sync = make_sync_checkpointer()
    sync.save(str(tmp_path / "a"), state_of(1))
    sync.load(str(tmp_path / "a"))
    assert not part(DefaultSavers).by_process
    asynchronous = make_async_checkpointer()
    state = asynchronous.load(str(tmp_path / "a"))
    saver = asynchronous._process._saver
    assert saver is not None
    wait_for_memory(saver)
    assert saver.writer_pid
    for future in asynchronous.save(str(tmp_path / "b"), state) or ():
        future.result()
    asynchronous.close()


_FORKS_AND_ENDS = """
import os, sys, torch, cairn
from cairn.staging import DefaultStager, StagingOptions
DefaultStager(StagingOptions(False, False, False, False))
state = {"w": torch.zeros(64 << 20)}
cairn.load(state, checkpoint_id=sys.argv[1])
child = os.fork()
if child == 0:
    cairn.async_save({"w": torch.ones(3)}, checkpoint_id=sys.argv[2]).result()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_fork_and_the_end_of_the_program_during_the_preparation(tmp_path: Path) -> None:
    cairn.save({"w": torch.zeros(64 << 20)}, checkpoint_id=tmp_path / "a")
    program = [sys.executable, "-c", _FORKS_AND_ENDS, str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(program, timeout=120, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    assert (tmp_path / "b" / ".metadata").exists()
