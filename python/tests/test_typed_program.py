"""Type checkers accept the documented uses."""

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("typed_program.py")
PACKAGES = Path(__file__).parents[1]  # mypy checks the package's sources: the stub beside __init__.py

# torch's own types are Any: checking torch would take a minute. A user does not see errors inside cairn.
CONFIGURATION = f"""
[mypy]
strict = True
python_version = 3.11
mypy_path = {PACKAGES}
disallow_any_unimported = False
disallow_subclassing_any = False
warn_unused_ignores = False

[mypy-cairn.*]
follow_imports = silent

[mypy-torch.*]
follow_imports = skip
"""


def test_mypy_accepts_the_documented_uses(tmp_path: Path) -> None:
    configuration = tmp_path / "mypy.ini"
    configuration.write_text(CONFIGURATION)
    command = [sys.executable, "-m", "mypy", "--config-file", configuration, "--cache-dir", tmp_path / "cache", PROGRAM]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr
