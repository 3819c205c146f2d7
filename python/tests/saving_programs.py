"""Programs that save in the background in separate processes, and the means of a test to watch the programs."""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import warm_python

import cairn

PRELUDE = """
import os, signal, sys, threading, time, traceback
from pathlib import Path

import torch
import cairn
from cairn._async.async_saver import DefaultSavers
from cairn._process import part

torch.set_num_threads(1)  # what has many threads in OpenMP can't go on in a forked child
directory, kind = Path(sys.argv[1]), cairn.AsyncCheckpointerType[sys.argv[2]]

def state(step):
    return {"w": torch.full((1 << 18,), float(step)), "step": step}

def save(step, where=directory, kind=kind):
    return cairn.async_save(state(step), checkpoint_id=where, async_checkpointer_type=kind)

def writer_pid():
    savers = part(DefaultSavers).by_process
    return savers[True].writer_pid if True in savers else 0

def say(*words):
    # One write per line: a forked child says its lines on the same pipe, and print() may write a line in two parts.
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\\n").encode())

def say_inside(function, *words):
    "Says it when the main thread stands still inside a function of that name: whoever hears it may press Ctrl-C."
    def watch():
        before = None
        while True:
            frame = sys._current_frames()[threading.main_thread().ident]
            here = id(frame), frame.f_lasti
            if here == before and function in (inner.f_code.co_name for inner, _ in traceback.walk_stack(frame)):
                return say(*words)
            before = here
            time.sleep(0.05)
    threading.Thread(target=watch, daemon=True).start()

"""
MAIN = """
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
"""
# A program's last statement before the interpreter waits for its threads.
SAYS_WHEN_IT_WAITS = "threading._register_atexit(say, 'waits')"
PATIENCE_SECONDS = 240


class Program:
    """A Python program in its own process group.

    The program prints lines (`said`) and reads a line to continue (`tell`).
    """

    def __init__(self, folder: Path, body: str, *arguments: object, functions: str = "") -> None:
        script = folder / "program.py"
        script.write_text(PRELUDE + textwrap.dedent(functions) + MAIN + textwrap.indent(textwrap.dedent(body), "    "))
        self._errors = folder / "stderr"
        with self._errors.open("w") as errors:
            self.process = warm_python.Popen(
                [sys.executable, str(script), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._watchdog = threading.Timer(PATIENCE_SECONDS, self.kill)
        self._watchdog.start()

    def said(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program has ended: {self.errors()}"
        return line.strip()

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def press_ctrl_c(self) -> None:
        """Sends SIGINT to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        return self.process.wait()

    def kill(self) -> None:
        """Kills the program and its children, but not its writer; `said` then meets the end of the output."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self.process.communicate()
        self._watchdog.cancel()

    def errors(self) -> str:
        return self._errors.read_text()


@contextlib.contextmanager
def running(folder: Path, body: str, *arguments: object, functions: str = "") -> Iterator[Program]:
    program = Program(folder, body, *arguments, functions=functions)
    try:
        yield program
    finally:
        program.close()


@contextlib.contextmanager
def no_commit_in(directory: Path) -> Iterator[None]:
    """Saves into `directory` stop before their commit and stay in flight for the duration of the block."""
    directory.mkdir(exist_ok=True)
    lock = directory / ".cairn-lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:  # in the engine's order: the unlink comes first, then the length marks the file as retired
        lock.unlink()
        os.ftruncate(descriptor, 1)
        os.close(descriptor)


class Watched:
    """A process that need not be a child of the test."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor = os.pidfd_open(pid)

    def terminate(self) -> None:
        """Sends SIGTERM, and returns when the process has taken the signal.

        For a process that reads signals from a signalfd the signal stays pending until read.
        """
        os.kill(self._pid, signal.SIGTERM)
        bit = 1 << (signal.SIGTERM - 1)
        while not self.has_ended():
            status = Path(f"/proc/{self._pid}/status").read_text()
            if not int(status.partition("ShdPnd:")[2].split()[0], 16) & bit:
                return
            time.sleep(0.001)

    def ends(self) -> bool:
        return bool(select.select([self._descriptor], [], [], PATIENCE_SECONDS)[0])

    def has_ended(self) -> bool:
        return bool(select.select([self._descriptor], [], [], 0)[0])


def is_there(directory: Path, step: int) -> bool:
    return cairn.open(directory)["step"] == step and bool(cairn.verify(directory))


def appears(directory: Path, step: int) -> bool:
    """Whether the checkpoint of `step` appears, for saves of a program that has ended."""
    return cairn.latest(directory, wait=PATIENCE_SECONDS) == str(directory) and is_there(directory, step)
