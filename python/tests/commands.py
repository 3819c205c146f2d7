"""Commands, as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

# torch 2.13 aborts a process with this text if a thread of gloo drops a tensor while the interpreter ends
# (https://github.com/pytorch/pytorch/pull/179291). The ranks have then done all their work.
_ABORT_OF_GLOO = "terminate called without an active exception"


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
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def torchrun(ranks: int, *command: str | Path, timeout: float, python: str | Path = sys.executable) -> str:
    """Returns the output of a job of `ranks` processes, whose last collective call every rank must have passed before
    the job's last line is printed. Fails unless the job succeeds, or torch alone has failed, at its exit."""
    launcher = [str(python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words = [*launcher, *(str(part) for part in command)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout)
    is_of_gloo = _ABORT_OF_GLOO in done.stderr and "exitcode: -6" in done.stderr
    assert done.returncode == 0 or is_of_gloo, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout
