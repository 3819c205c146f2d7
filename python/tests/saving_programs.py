"""Programs of their own that save in the background, and how a test watches them live and end."""

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

import cairn

PRELUDE = """
import os, signal, sys, threading, time, traceback
from pathlib import Path

import torch
import cairn
from cairn import async_saving

torch.set_num_threads(1)  # what has many threads in OpenMP can't go on in a forked child
directory, kind = Path(sys.argv[1]), cairn.AsyncCheckpointerType[sys.argv[2]]

def state(step):
    return {"w": torch.full((1 << 18,), float(step)), "step": step}

def save(step, where=directory, kind=kind):
    return cairn.async_save(state(step), checkpoint_id=where, async_checkpointer_type=kind)

def writer_pid():
    return async_saving._savers[True].writer_pid if True in async_saving._savers else 0

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
# The last thing that a program does before the interpreter waits for its threads.
SAYS_WHEN_IT_WAITS = "threading._register_atexit(say, 'waits')"
PATIENCE_SECONDS = 120


class Program:
    """A Python program in a process group of its own, which says things and is told to go on."""

    def __init__(self, folder: Path, body: str, *arguments: object, functions: str = "") -> None:
        script = folder / "program.py"
        script.write_text(PRELUDE + textwrap.dedent(functions) + MAIN + textwrap.indent(textwrap.dedent(body), "    "))
        self._errors = folder / "stderr"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
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
        """As a terminal does: all in the foreground get the signal."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        return self.process.wait()

    def kill(self) -> None:
        """The program and its children, but not its writer; what it says ends then."""
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
    """Saves into it get no further than to their commit: they stay under way."""
    directory.mkdir(exist_ok=True)
    lock = directory / ".cairn-lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:  # as the engine releases it: the name goes first, then the length tells that the file is retired
        lock.unlink()
        os.ftruncate(descriptor, 1)
        os.close(descriptor)


class Watched:
    """A process that is nobody's child here, or not ours."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor = os.pidfd_open(pid)

    def terminate(self) -> None:
        """Sends it SIGTERM, and returns when it has heard of it: a signal that it reads stays pending until then."""
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
    """Waits for saves whose program does not wait any more."""
    return cairn.latest(directory, wait=PATIENCE_SECONDS) == str(directory) and is_there(directory, step)
