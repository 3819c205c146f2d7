"""What `cairn.latest` and `cairn.saves_in_flight` see of saves of this process, of others, and of the dead."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

import cairn
from cairn import _engine

# Claims a directory, says so, and commits a checkpoint of nothing when it is told to.
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


def save(directory: Path, time: int) -> None:
    cairn.save({"w": torch.ones(3)}, checkpoint_id=directory, no_dist=True)
    os.utime(directory / ".metadata", (time, time))


@contextmanager
def running(program: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """The program, once it has said its first word."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
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
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()
        return self.found


def test_latest_is_none_where_nothing_is(tmp_path: Path) -> None:
    assert cairn.latest(tmp_path) is None
    assert cairn.latest(tmp_path / "missing", wait=3600) is None
    (tmp_path / "empty").mkdir()
    assert cairn.latest(tmp_path) is None


def test_latest_is_the_newest_commit_in_or_below_the_root(tmp_path: Path) -> None:
    save(tmp_path / "step-9", 2_000)
    save(tmp_path / "step-10", 3_000)
    save(tmp_path / "another", 1_000)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "step-10")
    save(tmp_path, 4_000)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path)
    assert cairn.latest(os.fspath(tmp_path / "another")) == os.fspath(tmp_path / "another")


def test_latest_goes_by_the_number_of_the_save_if_the_times_are_the_same(tmp_path: Path) -> None:
    for name in ("z", "a"):
        save(tmp_path / name, 1_000)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "a")


def test_latest_passes_over_a_checkpoint_whose_files_are_not_all_there(tmp_path: Path) -> None:
    save(tmp_path / "old", 1_000)
    save(tmp_path / "torn", 2_000)
    save(tmp_path / "cut", 3_000)
    (tmp_path / "torn" / "__0_0.distcp").unlink()
    os.truncate(tmp_path / "cut" / "__0_0.distcp", 100)
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "old")


def test_latest_takes_stock_checkpoints(tmp_path: Path) -> None:
    import stock

    save(tmp_path / "ours", 1_000)
    stock.save({"w": torch.ones(3)}, tmp_path / "stock")
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "stock")


def test_latest_counts_what_a_rank_saved_alone_only_for_that_rank(tmp_path: Path) -> None:
    save(tmp_path / "all", 1_000)
    (tmp_path / "alone").mkdir()
    claim = _engine.SaveClaim(os.fsencode(tmp_path / "alone"), overwrite=True, durable=True, alone_as_rank=3)
    claim.commit(pickle.dumps(Metadata({}, {}, {})), [])
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "all")
    assert cairn.latest(tmp_path, rank=2) == os.fspath(tmp_path / "all")
    assert cairn.latest(tmp_path, rank=3) == os.fspath(tmp_path / "alone")


def test_latest_waits_for_a_writer_that_is_about_to_commit(tmp_path: Path) -> None:
    save(tmp_path / "old", 1_000)
    with running(SAVER, tmp_path / "new") as saver:
        assert cairn.latest(tmp_path) == os.fspath(tmp_path / "old")
        waiting = Waiting(tmp_path)
        assert waiting.still_waits()
        assert saver.communicate("commit\n")[0] == "committed\n"
        assert waiting.result() == os.fspath(tmp_path / "new")


def test_latest_waits_for_a_writer_only_while_it_lives(tmp_path: Path) -> None:
    save(tmp_path / "old", 1_000)
    with running(SAVER, tmp_path / "new") as saver:
        waiting = Waiting(tmp_path)
        assert waiting.still_waits()
        saver.kill()
        assert waiting.result() == os.fspath(tmp_path / "old")


def test_latest_stops_waiting_on_ctrl_c(tmp_path: Path) -> None:
    with running(SAVER, tmp_path), running(WAITER, tmp_path) as waiter:
        waiter.send_signal(signal.SIGINT)
        assert waiter.communicate()[0] == "interrupted\n"


def test_latest_refuses_what_is_no_time_and_no_rank(tmp_path: Path) -> None:
    for wait in (-1.0, float("nan"), float("inf")):
        with pytest.raises(cairn.InvalidArgument, match="wait"):
            cairn.latest(tmp_path, wait=wait)
    with pytest.raises(cairn.InvalidArgument, match="rank"):
        cairn.latest(tmp_path, rank=-1)


def test_a_save_in_flight_is_seen_while_it_lives_and_when_it_died(tmp_path: Path) -> None:
    assert cairn.saves_in_flight(tmp_path) == ()
    with running(SAVER, tmp_path) as saver:
        (save,) = cairn.saves_in_flight(tmp_path)
        assert (tmp_path / f".cairn-{save.save_id}").is_dir()
        assert save.save_number == 1
        assert (save.verdict, save.is_leftover, save.failures) == (None, False, {})
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
    assert [(writer.host, writer.state) for writer in save.writers] == [("", "unknown")]
    assert not save.is_leftover


def test_saves_in_flight_needs_a_directory(tmp_path: Path) -> None:
    with pytest.raises(cairn.NotFound):
        cairn.saves_in_flight(tmp_path / "missing")
