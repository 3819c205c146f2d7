"""`cairn watch`: the lines and the JSON of saves in flight, their ends, and the ways in which the command ends."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hanging
import pytest
from tool import CHECK_FAILED, OK, UNREADABLE, USAGE, run, tool

from cairn import _engine

PATIENCE_SECONDS = 240
SAVE = """
import sys, torch, cairn
by_process = cairn.AsyncCheckpointerType.PROCESS
state = {"w": torch.ones(1 << 20)}
cairn.async_save(state, checkpoint_id=sys.argv[1], async_checkpointer_type=by_process).result()
"""
DEAD_SAVE = """
import os, sys
from cairn import _engine
claim = _engine.SaveClaim(os.fsencode(sys.argv[1]), overwrite=True, durable=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanging.library(tmp_path_factory.mktemp("hanging"))


@pytest.fixture
def saving(library: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder with a save whose writer hangs in its first write of a data file, while the returned file exists."""
    block = tmp_path / "block"
    block.touch()
    environment = {**os.environ, "LD_PRELOAD": str(library), "HANG": f"pwrite:{block}"}
    with subprocess.Popen([sys.executable, "-c", SAVE, tmp_path / "run" / "step-3"], env=environment) as program:
        try:
            wait_until_exists(tmp_path / "block.reached")
            yield block
        finally:
            block.unlink(missing_ok=True)
        assert program.wait(PATIENCE_SECONDS) == 0


def wait_until_exists(path: Path) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < until, f"no {path}"
        time.sleep(0.01)


def watching(*words: object) -> "subprocess.Popen[str]":
    command = [tool(), "watch", *map(str, words), "--interval", "0.1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_bytes_and_the_longest_call_of_a_save(saving: Path, tmp_path: Path) -> None:
    with watching(tmp_path / "run", "--until-idle", "--json") as watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            look = json.loads(line)
            assert look["ended"] == []
            (save,) = look["saves"]
            assert save["directory"] == str(tmp_path / "run" / "step-3")
            calls = [writer["pending_call"] for writer in save["writers"]]
            if any(call.startswith("writing '") for call in calls):
                break
        totals = [writer["progress"]["bytes_total"] for writer in save["writers"] if writer["progress"]]
        assert sum(totals) > 1 << 22
        saving.unlink()
        *_, last = watch.stdout
        assert watch.wait() == OK
    ((ended,), saves) = json.loads(last)["ended"], json.loads(last)["saves"]
    assert saves == []
    assert (ended["directory"], ended["is_committed"]) == (str(tmp_path / "run" / "step-3"), True)
    assert ended["save_id"] == save["save_id"]


def test_the_lines_of_a_save_outside_a_terminal(saving: Path, tmp_path: Path) -> None:
    with watching(tmp_path / "run", "--until-idle") as watch:
        assert watch.stdout is not None
        for line in watch.stdout:  # one each ten seconds
            assert line.startswith("step-3 ")
            if "writing '" in line:
                break
        assert "step-3 writing [" in line
        assert "0 B of 4.0 MiB" in line
        assert "  1 writer  coordinator: writing '.cairn-" in line
        saving.unlink()
        *_, last = watch.stdout
        assert watch.wait() == OK
    assert last.startswith("step-3  committed, 4.0 MiB, watched for ")


def test_a_terminal_is_redrawn_and_ctrl_c_ends_the_watch(tmp_path: Path) -> None:
    claim = _engine.SaveClaim(os.fsencode(tmp_path / "step-3"), overwrite=True, durable=True)
    ours, theirs = pty.openpty()
    command = [tool(), "watch", tmp_path, "--interval", "0.1"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as watch:
        os.close(theirs)
        text = b""
        while b"\x1b[1A" not in text:
            text += os.read(ours, 4096)
        assert b"step-3  in flight  1 writer\x1b[K" in text
        claim.withdraw()
        while b"no save is in flight" not in text:
            text += os.read(ours, 4096)
        assert b"step-3  ended, and is not the checkpoint in place" in text
        watch.send_signal(signal.SIGINT)
        assert watch.wait(PATIENCE_SECONDS) == -signal.SIGINT
    os.close(ours)


def test_a_dead_save_fails_the_watch(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DEAD_SAVE, tmp_path / "step-3"], check=True)
    done = run("watch", tmp_path, "--until-idle")
    assert done.returncode == CHECK_FAILED
    assert f"step-3  died: 'cairn clean {tmp_path / 'step-3'}' removes its files\n" in done.stdout.decode()


def test_nothing_to_watch(tmp_path: Path) -> None:
    assert run("watch", tmp_path, "--until-idle").stdout == b""
    done = run("watch", tmp_path / "missing", "--until-idle")
    assert done.returncode == UNREADABLE
    assert str(tmp_path / "missing").encode() in done.stderr
    assert run("watch", tmp_path, "--interval", "0").returncode == USAGE
