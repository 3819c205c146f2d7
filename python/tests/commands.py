"""Commands, as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

# torch 2.13 aborts a process with this text if a thread of gloo drops a tensor while the interpreter ends
# (https://github.com/pytorch/pytorch/pull/179291). The ranks have then done all their work.
_ABORT_OF_GLOO = "terminate called without an active exception"


def assert_succeeded(done: subprocess.CompletedProcess[str]) -> None:
    """Fails unless the command succeeded, with the end of the output.

    A job of torchrun has succeeded, too, if torch alone failed, in a rank that had ended its program.
    """
    aborted = _ABORT_OF_GLOO in done.stderr and "exitcode: -6" in done.stderr
    assert done.returncode == 0 or aborted, f"{done.args}\n{done.stdout[-5000:]}{done.stderr[-5000:]}"


def run(
    *command: str | Path, cwd: Path | None = None, timeout: float | None = None, env: dict[str, str] | None = None
) -> str:
    """Returns the output of a command, with `env` added to the environment. Fails unless the command succeeds, with the
    end of what the command printed. `timeout` is in seconds."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )
    assert_succeeded(done)
    return done.stdout


def launcher(ranks: int, python: str | Path = sys.executable) -> list[str]:
    """The words before a program that start a job of `ranks` processes on this machine."""
    return [str(python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def torchrun(ranks: int, *command: str | Path, timeout: float, python: str | Path = sys.executable) -> str:
    """Returns the output of a job of `ranks` processes. Fails unless the job succeeds (`assert_succeeded`).

    Every rank must have passed the job's last collective call before the job's last line is printed.
    """
    return run(*launcher(ranks, python), *command, timeout=timeout)
