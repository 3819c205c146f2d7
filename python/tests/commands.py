"""Commands, as a user runs them."""

import os
import subprocess
from pathlib import Path


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
