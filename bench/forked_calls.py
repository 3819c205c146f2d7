"""Calls in processes of their own, forked from a process that has only imported modules.

Each call begins with equal memory, and without the thread pools and caches of earlier calls. A fork takes milliseconds,
and an import of torch takes seconds. Run as a program, the module is the process that forks.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

SECONDS_MAX = 400  # for one call


class CallFailed(Exception):
    """The call raised, or its process ended. The text is the reason."""


class ForkedCalls:
    """A process that forks for each call. A context manager."""

    def __init__(self, modules: Sequence[str], python: str | Path = sys.executable) -> None:
        self.process = subprocess.Popen(
            [str(python), __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "ForkedCalls":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.communicate()

    def call(self, module: str, function: str, *arguments: Any) -> Any:
        """Returns the function's result. Arguments and result are values of JSON, or paths. Raises CallFailed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = [module, function, arguments]
        try:
            self.process.stdin.write(json.dumps(request, default=str) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise CallFailed("the process that forks has ended")
        error, result = json.loads(answer)
        if error is not None:
            raise CallFailed(error)
        return result


def answer(request: str) -> str:
    module, function, arguments = json.loads(request)
    try:
        return json.dumps([None, getattr(importlib.import_module(module), function)(*arguments)])
    except Exception as error:
        if os.environ.get("CAIRN_BENCH_TRACE"):
            traceback.print_exc()
        text = str(error).partition("\n")[0]
        return json.dumps([f"{type(error).__name__}: {text}"[:300], None])


def fork_for_each_line(modules: Sequence[str]) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what the libraries print is no answer
    for module in modules:
        importlib.import_module(module)
    for request in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.alarm(SECONDS_MAX)
            os.write(answers, (answer(request) + "\n").encode())
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status != 0:
            reason = f"the process of the call ended with {os.waitstatus_to_exitcode(status)}"
            os.write(answers, (json.dumps([reason, None]) + "\n").encode())


if __name__ == "__main__":
    fork_for_each_line(sys.argv[1:])
