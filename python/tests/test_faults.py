"""A sample of `./dev faults waiting`: ranks are killed, stopped, and crossed by a second job (docs/faults.md)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "faults/faults.py"

# Situations that the sample must meet: a sample in which each kill comes too early proves little. The program goes on
# until it has met them.
MET = {
    "kill": ["old", "new", "with litter"],
    "kill-places": ["old", "new", "with litter", "with an acknowledged save"],
    "kill-both": ["old"],
    "kill-first": ["nothing"],
    "stop": ["old", "overtaken", "ended with an error"],
    "two-jobs": ["one wins"],
    "load": ["1 behind"],
    "checkpointing-kill": ["old", "new"],
}


@pytest.fixture(scope="module")
def tallies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The program's findings by fault.

    The program runs in its own process, because it forks ranks and must have no threads.
    """
    folder = tmp_path_factory.mktemp("faults")
    command = [sys.executable, str(PROGRAM), "waiting", "--sample"]
    command += ["--scratch", str(folder), "--json", str(folder / "found.json")]
    command += ["--seek", json.dumps(MET)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert (folder / "found.json").exists(), done.stdout + done.stderr
    return {tally["name"]: tally for tally in json.loads((folder / "found.json").read_text())}


def test_every_fault_is_tried(tallies: dict[str, Any]) -> None:
    assert tallies.keys() == MET.keys()


@pytest.mark.slow
@pytest.mark.parametrize("fault", MET)
def test_no_promise_is_broken(fault: str, tallies: dict[str, Any]) -> None:
    tally = tallies[fault]
    assert not tally["problems"], tally["problems"]
    for what in MET[fault]:
        assert tally["found"].get(what), f"never met: {what}; {tally['found']}"
