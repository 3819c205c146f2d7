"""A job: the forked ranks of a process group, and the means to command, hear, stop and kill the ranks.

The forking process has imported torch and Cairn, and uses neither a process group nor a thread: a rank starts in
milliseconds, where importing torch takes seconds.
"""

import json
import os
import select
import shutil
import signal
import socket
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import descendants
import rank as rank_process
from orders import AsyncSave, Strike, Whom
from tally import Problem

TIMEOUT_SECONDS = 5.0  # of a job's process group, by default

_HANG_SECONDS = 60.0  # beyond the timeout of the group: a rank without a message for this long hangs


@dataclass(frozen=True)
class Reply:
    """A rank's report of a save or load. Times are from the monotonic clock, which all processes share."""

    ok: bool
    step: int = -1
    kind: str = ""  # the class of the error
    text: str = ""
    is_cairns: bool = False  # the error is a cairn.Error
    begun: float = 0.0
    ended: float = 0.0
    calls: list[str] = field(default_factory=list)


class Job:
    """Ranks that live until the end of the `with` block or a kill."""

    _links: set[socket.socket] = set()  # noqa: RUF012 - ends in this process: no rank may hold a foreign link

    def __init__(self, ranks: int = 2, timeout_seconds: float = TIMEOUT_SECONDS, how: AsyncSave | None = None) -> None:
        """With `how`, the job's saves are asynchronous."""
        _require_no_threads()
        self.timeout_seconds = timeout_seconds
        self.ranks = range(ranks)
        self.how = how
        self.staged: set[int] = set()  # the ranks that reported their asynchronous save as staged
        self._scratch = Path(tempfile.mkdtemp(prefix="cairn-faults-"))
        self._pids: list[int] = []
        self._mine: list[socket.socket] = []
        self._exits: dict[int, int] = {}  # the wait statuses of the ranks that are gone
        self._unread: list[bytes] = [b""] * ranks
        for number in range(ranks):
            self._fork(number)
        self.await_all()

    def __enter__(self) -> "Job":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for rank in self.ranks:
            self.kill(rank)
        for link in self._mine:
            Job._links.discard(link)
            link.close()
        shutil.rmtree(self._scratch)

    def _fork(self, rank: int) -> None:
        mine, its = socket.socketpair()
        Job._links.add(mine)
        pid = os.fork()
        if pid == 0:
            for link in Job._links:
                link.close()
            place = rank_process.Place(rank, len(self.ranks), self._scratch / "store", self.timeout_seconds)
            rank_process.serve(its, place, self.how)
        its.close()
        self._pids.append(pid)
        self._mine.append(mine)

    def start(self, do: str, directory: Path, step: int = 0, strikes: dict[int, Strike] | None = None) -> None:
        """Makes every rank save, or load into, the state of `step`. Returns when all ranks are about to begin."""
        self.staged.clear()
        for rank, link in enumerate(self._mine):
            strike = (strikes or {}).get(rank)
            command = {"do": do, "directory": str(directory), "step": step, "strike": strike}
            link.sendall(json.dumps(command).encode() + b"\n")
        for rank in range(len(self._mine)):
            self._read(rank)

    def has_news(self, rank: int) -> bool:
        """Whether a reply can be read, or the rank is gone. A report of staging is noted and is not a reply."""
        while True:
            line, end, rest = self._unread[rank].partition(b"\n")
            if end and "staged" not in json.loads(line):
                return True
            if end:
                self.staged.add(rank)
                self._unread[rank] = rest
                continue
            if not select.select([self._mine[rank]], [], [], 0)[0]:
                return False
            data = self._mine[rank].recv(1 << 16)
            if not data:
                return True
            self._unread[rank] += data

    def await_reply(self, rank: int) -> Reply | None:
        """Returns the rank's reply to its command; None if the rank was killed before.

        Raises Problem if the rank hangs.
        """
        message = self._read(rank)
        return None if message is None else Reply(**message)

    def _read(self, rank: int) -> dict[str, Any] | None:
        until = time.monotonic() + self.timeout_seconds + _HANG_SECONDS
        while not self.has_news(rank):
            if time.monotonic() > until:
                raise Problem(f"rank {rank} hangs")
            select.select([self._mine[rank]], [], [], max(until - time.monotonic(), 0))
        if b"\n" not in self._unread[rank]:
            self._reap(rank)
            return None
        line, _, self._unread[rank] = self._unread[rank].partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def await_all(self) -> list[Reply]:
        """Returns a reply of every rank. Raises Problem if a rank is gone."""
        replies = [self.await_reply(rank) for rank in self.ranks]
        whole = [reply for reply in replies if reply is not None]
        if len(whole) < len(replies):
            raise Problem("a rank that nobody killed is gone")
        return whole

    def await_stopped(self, rank: int) -> None:
        """Waits until the rank is stopped by a signal."""
        _, status = os.waitpid(self._pids[rank], os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._exits[rank] = status
            raise Problem(f"rank {rank} is gone and not stopped")

    def signal(self, rank: int, number: int, whom: Whom = "trainer") -> None:
        if rank not in self._exits:
            descendants.strike(self._pids[rank], number, whom)

    def writers(self, rank: int) -> list[int]:
        """Returns the writer processes of a rank."""
        return descendants.writers_of(self._pids[rank])

    def who_writes(self, rank: int) -> int:
        """Returns the process that writes a rank's files."""
        return next(iter(self.writers(rank)), self._pids[rank])

    def open_files(self, rank: int) -> Counter[str]:
        """Counts the open files of a living rank by kind."""
        return descendants.open_files(self._pids[rank])

    def kill(self, rank: int) -> None:
        self.signal(rank, signal.SIGKILL)
        self._reap(rank)

    def _reap(self, rank: int) -> None:
        if rank in self._exits:
            return
        _, status = os.waitpid(self._pids[rank], 0)
        self._exits[rank] = status
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise Problem(f"rank {rank} ended with wait status {status:#x}, by nobody's wish")


def _require_no_threads() -> None:
    """Joined threads leave the kernel's list of threads with a short delay: waits until one thread is left."""
    until = time.monotonic() + _HANG_SECONDS
    while len(list(Path("/proc/self/task").iterdir())) > 1:
        if time.monotonic() > until:
            raise RuntimeError("a process with threads can't be forked safely")
        time.sleep(0.001)


def typical_seconds(ranks: int, do: str, directory: Path) -> float:
    """Returns the typical seconds of an overwrite, by a job that has saved before."""
    seconds = []
    with Job(ranks) as job:
        for step in range(1, 7):
            job.start(do, directory, step)
            replies = job.await_all()
            require_success(replies, f"'{do}'")
            seconds.append(max(reply.ended - reply.begun for reply in replies))
    return statistics.median(seconds[1:])


def require_success(replies: list[Reply], what: str) -> None:
    failed: list[Any] = [f"{reply.kind}: {reply.text}" for reply in replies if not reply.ok]
    if failed:
        raise Problem(f"{what} failed: {failed}")
