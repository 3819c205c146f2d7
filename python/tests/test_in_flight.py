"""`cairn.latest` and `cairn.saves_in_flight` with saves of this process, of living processes, and of dead processes."""

import logging
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import preloaded
import pytest
import torch
import warm_python
from tool import json_of
from torch.distributed.checkpoint.metadata import Metadata

import cairn
from cairn import _engine

# Claims a directory, prints "claimed", and commits an empty checkpoint after a line of input.
SAVER = """
import os, pickle, sys
from cairn import _engine

claim = _engine.SaveClaim(os.fsencode(sys.argv[1]), overwrite=True, durable=True)
print("claimed", flush=True)
sys.stdin.readline()
from torch.distributed.checkpoint.metadata import Metadata
claim.commit(pickle.dumps(Metadata({}, {}, {})), [])
print("committed", flush=True)
"""

WAITER = """
import signal, sys
import cairn

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
try:
    print("waiting", flush=True)
    cairn.latest(sys.argv[1], wait=3600)
    print("returned")
except KeyboardInterrupt:
    print("interrupted")
"""


def save(directory: Path) -> None:
    cairn.save({"w": torch.ones(3)}, checkpoint_id=directory, no_dist=True)


def touch(directory: Path, time: int) -> None:
    os.utime(directory / ".metadata", (time, time))


@contextmanager
def running(program: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Runs the program; the block starts after the program's first line of output."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with warm_python.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


class Waiting:
    """`cairn.latest` in a thread."""

    def __init__(self, root: Path) -> None:
        self.found: str | None = None
        self._thread = threading.Thread(target=self._run, args=(root,))
        self._thread.start()

    def _run(self, root: Path) -> None:
        self.found = cairn.latest(root, wait=3600)

    def still_waits(self) -> bool:
        self._thread.join(timeout=0.3)
        return self._thread.is_alive()

    def result(self) -> str | None:
        self._thread.join(timeout=240)
        assert not self._thread.is_alive()
        return self.found


def test_latest_is_none_where_nothing_is(tmp_path: Path) -> None:
    assert cairn.latest(tmp_path) is None
    (tmp_path / "empty").mkdir()
    assert cairn.latest(tmp_path) is None


@pytest.mark.parametrize(("variable", "lines"), [("RANK", 0), ("SLURM_PROCID", 0), ("", 1)])
def test_latest_logs_a_first_start_on_rank_0(
    variable: str, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "0")
    if variable:
        monkeypatch.setenv(variable, "1")
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "cairn"):
        warnings.simplefilter("error")
        assert cairn.latest(tmp_path / "missing", wait=3600) is None
    assert len(caplog.messages) == lines
    assert all(str(tmp_path / "missing") in message for message in caplog.messages)


def test_latest_warns_of_a_root_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    with pytest.warns(RuntimeWarning, match="no such directory"):
        assert cairn.latest(tmp_path / "link") is None


def test_latest_refuses_a_root_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(cairn.InvalidArgument, match="not a directory"):
        cairn.latest(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may not list the root")
def test_latest_fails_for_an_unreadable_root(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    save(closed / "step-1")
    closed.chmod(0o700)
    for directory in tmp_path.parents:  # up to pytest's base folder, which only root may enter
        if directory.stat().st_uid == 0 and directory.stat().st_mode & 0o7 == 0:
            directory.chmod(0o711)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        with pytest.raises(cairn.Unavailable, match="closed"):
            cairn.latest(closed)
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_latest_is_the_newest_save_in_or_below_the_root(tmp_path: Path) -> None:
    for name in ("another", "step-9", "step-10"):
        save(tmp_path / name)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "step-10")
    save(tmp_path)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path)
    assert cairn.latest(os.fspath(tmp_path / "another")) == os.fspath(tmp_path / "another")


def test_latest_does_not_go_by_the_times_of_files(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path / f"step-{step}")
    touch(tmp_path / "step-1", 9_000_000_000)
    shutil.copytree(tmp_path / "step-1", tmp_path / "step-3-copy-of-1")
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "step-2")


def test_latest_is_the_save_that_began_last_if_two_overlap(tmp_path: Path) -> None:
    metadata = pickle.dumps(Metadata({}, {}, {}))
    first = _engine.SaveClaim(os.fsencode(tmp_path / "first"), overwrite=True, durable=True)
    second = _engine.SaveClaim(os.fsencode(tmp_path / "second"), overwrite=True, durable=True)
    second.commit(metadata, [])
    first.commit(metadata, [])
    touch(tmp_path / "second", 1_000)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "second")


def test_of_two_copies_latest_is_the_one_with_the_greater_step_in_its_name(tmp_path: Path) -> None:
    save(tmp_path / "step-9")
    shutil.copytree(tmp_path / "step-9", tmp_path / "step-10")
    touch(tmp_path / "step-9", 9_000_000_000)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "step-10")


SLOW_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec* now) {
  int result = ((int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec -= 3600;
  return result;
}
"""
SAVE = "import sys, torch, cairn; cairn.save({'w': torch.ones(3)}, checkpoint_id=sys.argv[1], no_dist=True)"
RESUME = """
import sys, torch, cairn
cairn.load({"w": torch.ones(3)}, checkpoint_id=sys.argv[1], no_dist=True)
"""


def test_a_resumed_job_comes_after_the_original_job_for_any_clocks(tmp_path: Path) -> None:
    root = tmp_path / "root"
    environment = {**os.environ, "LD_PRELOAD": str(preloaded.library(SLOW_CLOCK, tmp_path))}

    def run_an_hour_ago(program: str, *arguments: object) -> None:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        subprocess.run(command, check=True, timeout=120, env=environment)

    save(root / "b")
    run_an_hour_ago(SAVE, root / "a")
    assert cairn.latest(root) == os.fspath(root / "b")
    run_an_hour_ago(RESUME + SAVE.replace("argv[1]", "argv[2]"), root / "b", root / "c")
    assert cairn.latest(root) == os.fspath(root / "c")
    run_an_hour_ago("import sys, cairn; cairn.latest(sys.argv[2]);" + SAVE, root / "d", root)
    assert cairn.latest(root) == os.fspath(root / "d")


def test_latest_names_the_skipped_checkpoints(tmp_path: Path) -> None:
    names = ("old", "torn", "cut", "damaged", "flipped", "blank")
    for name in names:
        save(tmp_path / name)
    (tmp_path / "torn" / "__0_0.distcp").unlink()
    os.truncate(tmp_path / "cut" / "__0_0.distcp", 100)
    metadata = tmp_path / "damaged" / ".metadata"
    content = metadata.read_bytes()
    metadata.write_bytes(content[:-30] + b"?" + content[-29:])
    os.truncate(tmp_path / "blank" / ".metadata", 0)
    flip_bit(tmp_path / "flipped" / ".metadata", 5)  # in the pickle
    with pytest.warns(RuntimeWarning, match="passed over") as warnings:
        assert cairn.latest(tmp_path) == os.fspath(tmp_path / "old")
    named = {name for name in names for w in warnings if f"{name}'" in str(w.message)}
    assert named == {"torn", "cut", "damaged", "flipped", "blank"}
    listed = {Path(entry.directory).name: entry for entry in cairn.checkpoints(tmp_path)}
    assert [name for name, entry in listed.items() if entry.is_newest] == ["old"]
    states = {name: entry.state for name, entry in listed.items()}
    assert [name for name in states if states[name] == "incomplete"] == ["cut", "torn"]
    assert {name for name in states if states[name] == "unreadable"} == {"damaged", "flipped", "blank"}
    assert all((entry.reason is None) == (entry.state == "complete") for entry in listed.values())
    assert "__0_0.distcp" in str(listed["cut"].reason)


def flip_bit(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 4
    file.write_bytes(content)


def test_checkpoints_are_listed_in_the_order_of_latest(tmp_path: Path) -> None:
    import stock

    for step in (1, 2, 3):
        save(tmp_path / f"step-{step}")
    stock.save({"w": torch.ones(3)}, tmp_path / "stock")
    touch(tmp_path / "stock", 1_000)
    listed = cairn.checkpoints(tmp_path)
    assert [(Path(entry.directory).name, entry.step) for entry in listed] == [
        ("step-3", 3),
        ("step-2", 2),
        ("step-1", 1),
        ("stock", None),
    ]
    assert [entry.is_newest for entry in listed] == [True, False, False, False]
    assert {(entry.state, entry.format) for entry in listed} == {("complete", "dcp")}
    (file,) = (tmp_path / "stock").glob("*.distcp")
    os.truncate(file, file.stat().st_size - 200)
    assert [entry.state for entry in cairn.checkpoints(tmp_path)] == ["complete"] * 3 + ["incomplete"]
    with pytest.raises(cairn.NotFound):
        cairn.checkpoints(tmp_path / "missing")
    with pytest.raises(cairn.InvalidArgument, match="rank"):
        cairn.checkpoints(tmp_path, rank=-1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without access")
def test_latest_never_answers_with_an_older_checkpoint_for_lack_of_access(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path / f"step-{step}")
    (tmp_path / "lost+found").mkdir(mode=0o700)
    for directory in (tmp_path, *tmp_path.parents):  # up to pytest's base folder, which only root may enter
        if directory.stat().st_uid == 0 and directory.stat().st_mode & 0o7 == 0:
            directory.chmod(0o755)
    closed = tmp_path / "step-2"
    data_file = closed / "__0_0.distcp"

    def latest_of_another_user() -> str | None:
        os.setegid(65534)
        os.seteuid(65534)
        try:
            return cairn.latest(tmp_path)
        finally:
            os.seteuid(0)
            os.setegid(0)

    assert latest_of_another_user() == os.fspath(closed)
    for path, mode in ((closed, 0o700), (closed / ".metadata", 0o600), (data_file, 0o600)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(cairn.Unavailable, match=r"may be '.*step-2'"):
            latest_of_another_user()
        assert cairn.latest(tmp_path) == os.fspath(closed)
        path.chmod(before)
    # The order of step-1 can't be read. The time and the number say that step-1 is older.
    (tmp_path / "step-1" / ".metadata").chmod(0o600)
    os.utime(tmp_path / "step-1" / ".metadata", (1, 1))
    (tmp_path / "private").mkdir(mode=0o700)
    os.utime(tmp_path / "private", (1, 1))
    assert latest_of_another_user() == os.fspath(closed)
    for name in ("private", "step-1/.metadata"):
        os.utime(tmp_path / name, (9_000_000_000, 9_000_000_000))
        with pytest.raises(cairn.Unavailable, match=f"may be '.*{name.split('/')[0]}'"):
            latest_of_another_user()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "step-1").rename(tmp_path / "step-3")
    with pytest.raises(cairn.Unavailable, match=r"may be '.*step-3'"):  # by the number
        latest_of_another_user()


def test_latest_names_a_link_to_nothing(tmp_path: Path) -> None:
    save(tmp_path / "step-1")
    (tmp_path / "step-2").symlink_to(tmp_path / "gone" / "step-2")
    with pytest.warns(RuntimeWarning, match=r"step-2' is passed over.*symbolic link|symbolic link.*step-2' is passed"):
        assert cairn.latest(tmp_path) == os.fspath(tmp_path / "step-1")
    first, second = cairn.checkpoints(tmp_path)
    assert (first.state, first.is_newest, second.is_newest) == ("unreadable", False, True)


def test_latest_takes_stock_checkpoints_by_the_time_of_their_metadata(tmp_path: Path) -> None:
    import stock

    save(tmp_path / "ours")
    for name in ("step-9", "step-10"):
        stock.save({"w": torch.ones(3)}, tmp_path / name)
        touch(tmp_path / name, 9_000_000_000)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "step-10")
    touch(tmp_path / "step-9", 9_000_000_001)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "step-9")
    touch(tmp_path / "ours", 9_000_000_002)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "ours")


def test_latest_counts_a_save_without_collectives_only_for_its_rank(tmp_path: Path) -> None:
    save(tmp_path / "all")
    (tmp_path / "alone").mkdir()
    claim = _engine.SaveClaim(os.fsencode(tmp_path / "alone"), overwrite=True, durable=True, alone_as_rank=3)
    claim.commit(pickle.dumps(Metadata({}, {}, {})), [])
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "all")
    assert cairn.latest(tmp_path, rank=2) == os.fspath(tmp_path / "all")
    assert cairn.latest(tmp_path, rank=3) == os.fspath(tmp_path / "alone")


def test_latest_waits_for_a_writer_that_is_about_to_commit(tmp_path: Path) -> None:
    save(tmp_path / "old")
    with running(SAVER, tmp_path / "new") as saver:
        assert cairn.latest(tmp_path) == os.fspath(tmp_path / "old")
        waiting = Waiting(tmp_path)
        assert waiting.still_waits()
        assert saver.communicate("commit\n")[0] == "committed\n"
        assert waiting.result() == os.fspath(tmp_path / "new")


def test_latest_waits_only_for_a_living_writer(tmp_path: Path) -> None:
    save(tmp_path / "old")
    with running(SAVER, tmp_path / "new") as saver:
        waiting = Waiting(tmp_path)
        assert waiting.still_waits()
        saver.kill()
        assert waiting.result() == os.fspath(tmp_path / "old")


def test_latest_stops_waiting_on_ctrl_c(tmp_path: Path) -> None:
    with running(SAVER, tmp_path), running(WAITER, tmp_path) as waiter:
        waiter.send_signal(signal.SIGINT)
        assert waiter.communicate()[0] == "interrupted\n"


def test_latest_refuses_invalid_times_and_ranks(tmp_path: Path) -> None:
    for wait in (-1.0, float("nan"), float("inf")):
        with pytest.raises(cairn.InvalidArgument, match="wait"):
            cairn.latest(tmp_path, wait=wait)
    with pytest.raises(cairn.InvalidArgument, match="rank"):
        cairn.latest(tmp_path, rank=-1)


def test_a_save_in_flight_is_listed_alive_and_dead(tmp_path: Path) -> None:
    assert cairn.saves_in_flight(tmp_path) == ()
    with running(SAVER, tmp_path) as saver:
        (save,) = cairn.saves_in_flight(tmp_path)
        assert (tmp_path / f".cairn-{save.save_id}").is_dir()
        assert save.save_number == 1
        assert (save.decision, save.is_leftover, save.failures) == (None, False, {})
        (writer,) = save.writers
        assert (writer.rank, writer.host, writer.pid) == (None, socket.gethostname(), saver.pid)
        assert writer.state == "alive"
        assert writer.seconds_since_sign >= 0
        saver.kill()
        saver.wait()
        (dead,) = cairn.saves_in_flight(tmp_path)
        assert dead.save_id == save.save_id
        assert dead.is_leftover
        assert dead.writers[0].state == "dead"
    cairn.save({"w": torch.ones(3)}, checkpoint_id=tmp_path, no_dist=True)
    assert cairn.saves_in_flight(tmp_path) == ()


def test_a_folder_without_a_lease_that_can_be_read_is_seen_too(tmp_path: Path) -> None:
    folder = tmp_path / f".cairn-{'ab' * 16}"
    folder.mkdir()
    (folder / "lease").write_bytes(b"\xffgarbage")
    (tmp_path / ".cairn-not-a-save").mkdir()
    (save,) = cairn.saves_in_flight(tmp_path)
    assert save.save_id == "ab" * 16
    assert [(writer.host, writer.state, writer.is_readable) for writer in save.writers] == [("", "unknown", False)]
    assert (save.is_readable, save.writers[0].progress) == (True, None)
    assert not save.is_leftover


def say_progress(folder: Path, line: str) -> None:
    """Replaces the progress line in the lease of a save, as the save's heartbeat does."""
    lease = folder / "lease"
    lines = [text for text in lease.read_text().splitlines() if not text.startswith("progress")]
    lease.write_text("\n".join([*lines, line]) + "\n")


def test_a_lease_shows_the_progress_of_the_save(tmp_path: Path) -> None:
    with running(SAVER, tmp_path):
        (save,) = cairn.saves_in_flight(tmp_path)
        assert save.is_readable
        assert save.writers[0].is_readable
        folder = tmp_path / f".cairn-{save.save_id}"
        say_progress(folder, "progress writing 1048576 4194304 write 12500 writing '__0_0.distcp'")
        ((writer,),) = [save.writers for save in cairn.saves_in_flight(tmp_path)]
        assert writer.progress == ("writing", 1048576, 4194304)
        assert (writer.pending_call, writer.seconds_without_progress) == ("writing '__0_0.distcp'", 12.5)
        say_progress(folder, "progress waiting 4194304 4194304 - 0")
        ((writer,),) = [save.writers for save in cairn.saves_in_flight(tmp_path)]
        assert writer.progress == ("waiting", 4194304, 4194304)
        assert (writer.pending_call, writer.seconds_without_progress) == ("", 0)
        for garbage in ("", "asleep 1 2 - 0", "writing -1 2 - 0", "writing 1 2 nap 5 x"):
            say_progress(folder, f"progress {garbage}")
            ((writer,),) = [save.writers for save in cairn.saves_in_flight(tmp_path)]
            assert (writer.is_readable, writer.progress) == (True, None)


def test_saves_in_flight_needs_a_directory(tmp_path: Path) -> None:
    with pytest.raises(cairn.NotFound):
        cairn.saves_in_flight(tmp_path / "missing")


def test_python_and_the_tool_list_equal_saves_in_flight(tmp_path: Path) -> None:
    claims = [
        _engine.SaveClaim(os.fsencode(directory), overwrite=True, durable=True)
        for directory in (tmp_path / "step-2", tmp_path / "step-1", tmp_path)
    ]
    (tmp_path / "logs").mkdir()
    (tmp_path / "newest").symlink_to("step-2")
    saves = cairn.saves_in_flight(tmp_path)
    assert [save.directory for save in saves] == [os.fspath(tmp_path / name) for name in ("", "step-1", "step-2")]
    shown = json_of("status", tmp_path)["saves"]
    assert [(save["directory"], save["save_id"]) for save in shown] == [
        (save.directory, save.save_id) for save in saves
    ]
    (alone,) = cairn.saves_in_flight(tmp_path / "newest")
    assert (alone.save_id, alone.directory) == (saves[2].save_id, os.fspath(tmp_path / "newest"))
    (shown,) = json_of("status", tmp_path / "newest")["saves"]
    assert (shown["save_id"], shown["directory"]) == (alone.save_id, alone.directory)
    for claim in claims:
        claim.withdraw()
    assert cairn.saves_in_flight(tmp_path) == ()
