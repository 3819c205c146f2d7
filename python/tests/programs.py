"""Programs that need a Python of their own: nothing imported yet, or not to be changed for the other tests."""

import subprocess
import sys
import textwrap

# Put before a program: torch can't be imported.
WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name="torch")

sys.meta_path.insert(0, Refuse())
"""


def run(program: str, *arguments: object) -> str:
    """What a Python program prints, in a process of its own, where warnings are errors. It must succeed."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
