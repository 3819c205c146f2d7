"""A sample of `./dev faults async`: kills, hangs and failing storage while saves run in the background.

docs/faults.md describes the whole series.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "faults/faults.py"

# Situations that the sample must meet: a sample in which each kill comes too early proves little. The program goes on
# until it has met them.
MET = {
    "async-trainer": ["new", "staged when trainers died", "of a first save"],
    "async-writer": ["old", "of a first save"],
    "async-both": ["new", "of a first save"],
    "async-thread": ["new", "of a first save"],
    "async-disk": ["failing write", "failing fsync", "full disk"],
    "async-hang": ["the other rank says who"],
}


@pytest.fixture(scope="module")
def tallies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The program's findings by fault.

    The program runs in its own process, because it forks ranks and must have no threads.
    """
    folder = tmp_path_factory.mktemp("faults")
    names = [name for name in MET if name != "async-disk" or os.geteuid() == 0]  # it mounts a small disk
    command = [sys.executable, str(PROGRAM), *names]
    command += ["--sample", "--scratch", str(folder), "--json", str(folder / "found.json")]
    command += ["--seek", json.dumps(MET)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert (folder / "found.json").exists(), done.stdout + done.stderr
    return {tally["name"]: tally for tally in json.loads((folder / "found.json").read_text())}


@pytest.mark.slow
@pytest.mark.parametrize("fault", MET)
def test_no_promise_is_broken(fault: str, tallies: dict[str, Any]) -> None:
    if fault not in tallies:
        pytest.skip("needs root to mount a small disk")
    tally = tallies[fault]
    assert not tally["problems"], tally["problems"]
    for what in MET[fault]:
        assert tally["found"].get(what), f"never met: {what}; {tally['found']}"
