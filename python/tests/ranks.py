"""Real processes that form a gloo group and run the tasks of a test.

The processes are forked from a server that has already imported torch: a group starts in a fraction of a second, and
lives as long as the tests that share the group.
"""

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import warm_python

_HANG_SECONDS = 240  # a longer task counts as hung
_FOLLOW_SECONDS = 5  # after a rank failed, the remaining ranks have this long to return
_MODULES = [
    "cairn._calls.load",
    "cairn._ranks.process_group",
    "cairn._calls.save",
    "cairn._state.sharding",
    "cairn.state_dict",
    "torch._dynamo",
    "torch.distributed._shard.sharded_tensor",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.onnx",
]

context = mp.get_context("forkserver")
context.set_forkserver_preload(_MODULES)  # type: ignore[attr-defined]


def start(worker: Callable[..., None], ranks: int, folder: Path, *arguments: Any) -> None:
    """Runs `worker(rank, ranks, folder, ...)` in a process for each rank; fails if a worker fails."""
    mp.start_processes(worker, (ranks, folder, *arguments), nprocs=ranks, start_method="forkserver")


def free_port() -> int:
    """Returns a port at which no process listens.

    The port lies below the ports that Linux gives to connections: a test that runs at the same time does not take it.
    """
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("localhost", port))
            return port
    raise AssertionError("all ports are taken")


def run_program(
    program: Path,
    ranks: int,
    *arguments: object,
    preload: tuple[str, ...] = tuple(_MODULES),
    cwd: Path | None = None,
) -> str:
    """Runs `program` on each rank with torchrun's environment variables, and returns what rank 0 has printed.

    Fails if a rank fails or does not end. The ranks start with torch and the modules `preload` imported.
    """
    environment = os.environ | {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_RUN_ID": "tests",
    }
    command = [sys.executable, program, *map(str, arguments)]
    join = subprocess.STDOUT
    with contextlib.ExitStack() as until_read:
        outputs = [until_read.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        processes = []
        for rank, output in enumerate(outputs):
            mine = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = warm_python.Popen(command, preload, cwd=cwd, env=mine, stdout=output, stderr=join)
            until_read.callback(process.wait)
            until_read.callback(process.kill)
            processes.append(process)
        until = time.monotonic() + _HANG_SECONDS
        while None in (codes := [process.poll() for process in processes]):
            if any(codes) or time.monotonic() > until:
                break
            time.sleep(0.02)
        texts = [_text_of(output) for output in outputs]
    assert codes == [0] * ranks, (codes, *texts)
    return texts[0]


def _text_of(file: TextIO) -> str:
    file.seek(0)
    return file.read()


def init(rank: int, ranks: int, folder: Path, timeout_seconds: float = 200) -> None:
    """Makes this process a rank of the group whose store lies in `folder`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout_seconds),
    )


class Gang:
    """Processes for `size` ranks, until :meth:`close`. After a failed task the next task starts new processes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of the group's store, new for each new group

    def run(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Returns the results of `task(*arguments)`, by rank. Fails if a task raises or does not return."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((task, arguments))
        results: list[Any] = [None] * self.size
        complaints: dict[int, str] = {}
        waiting = dict(zip(self._pipes, range(self.size), strict=True))
        deadline = time.monotonic() + _HANG_SECONDS
        while waiting:
            ready = wait(list(waiting), max(deadline - time.monotonic(), 0))
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[arg-type,call-overload]
                try:
                    results[rank], complaint = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    complaint = "the process is gone"
                if complaint:
                    complaints[rank] = complaint
                    deadline = min(deadline, time.monotonic() + _FOLLOW_SECONDS)
            if not ready:
                complaints |= dict.fromkeys(waiting.values(), "did not return")
                break
        if complaints:
            self._kill()
            raise AssertionError("\n".join(f"rank {rank}: {text}" for rank, text in sorted(complaints.items())))
        return results

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(10)
        self._kill()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cairn-ranks-")
        for rank in range(self.size):
            mine, theirs = context.Pipe()
            arguments = (rank, self.size, Path(self._folder.name), theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._pipes, self._folder = [], [], None


@contextlib.contextmanager
def gang(size: int) -> Iterator[Gang]:
    """A Gang for the duration of the block."""
    ranks = Gang(size)
    try:
        yield ranks
    finally:
        ranks.close()


def _serve(rank: int, size: int, folder: Path, pipe: Connection) -> None:
    os.environ.pop("CAIRN_ALLOW_PICKLE", None)  # as in conftest.py
    init(rank, size, folder)
    while task := pipe.recv():
        try:
            pipe.send((task[0](*task[1]), None))
        except BaseException:
            pipe.send((None, traceback.format_exc()))
    dist.destroy_process_group()
