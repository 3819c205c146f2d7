"""The tool `cairn`, run as a user runs the tool."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

OK, CHECK_FAILED, USAGE, UNREADABLE = range(4)


def tool() -> str:
    found = shutil.which("cairn")
    assert found is not None, "the tool is not on PATH: run the tests through ./dev"
    return found


def run(*words: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([tool(), *map(str, words)], capture_output=True, env=environment, check=False, timeout=240)


def text_of(*words: str | Path) -> str:
    done = run(*words)
    assert (done.returncode, done.stderr) == (OK, b"")
    return done.stdout.decode()


def json_of(*words: str | Path) -> Any:
    return json.loads(text_of(*words, "--json"))
