"""Programs for a fresh Python process: nothing is imported yet, and changes do not reach other tests."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import warm_python

# Prefix of a program in which `import torch` fails.
WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name="torch")

sys.meta_path.insert(0, Refuse())
"""


def run(program: str, *arguments: object) -> str:
    """Runs a Python program, with warnings as errors, in a new process, and returns its output.

    Fails unless the program succeeds.
    """
    return _output(subprocess.run, program, *arguments)


def run_after_torch(program: str, *arguments: object) -> str:
    """As `run`, in a process that has imported torch: for a program about which torch's import says nothing."""
    return _output(warm_python.run, program, *arguments)


def _output(run_command: Callable[..., Any], program: str, *arguments: object) -> str:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *map(str, arguments)]
    done = run_command(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()
