"""The environment of the loaders that loaders.txt lists, on top of .venv."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))
from layered_environment import layered_environment  # noqa: E402


def loader_python() -> Path:
    """Returns the Python that finds the loaders; this Python, after a line about the reason, if pip fails."""
    try:
        return layered_environment(ROOT / "build/bench/loaders", {Path(__file__).with_name("loaders.txt"): []})
    except (OSError, subprocess.SubprocessError) as error:
        print(f"  the loaders of loaders.txt are missing: {error}", file=sys.stderr, flush=True)
        return Path(sys.executable)
