"""The run of examples/08_managed_run.py under torchrun: killed, stopped and resumed, also on other numbers of ranks."""

import re
import sys
from pathlib import Path

import commands
import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "examples/08_managed_run.py"


def run_on(ranks: int, directory: Path, steps: int) -> tuple[int, int, str]:
    """Returns the first and the last step, and the digest of the model."""
    output = commands.torchrun(ranks, RUN, directory, "--steps", str(steps), timeout=300)
    match = re.search(r"from step (\d+) to (\d+), model (\w+)", output)
    assert match is not None, output
    return int(match[1]), int(match[2]), match[3]


@pytest.mark.slow
def test_the_run_survives_kills_and_stops(tmp_path: Path) -> None:
    """A sample of faults/runs.py."""
    commands.run(sys.executable, ROOT / "faults/runs.py", tmp_path, "--kills", "1", "--stops", "2", timeout=500)


@pytest.mark.slow
def test_the_run_resumes_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    assert run_on(2, tmp_path, 12)[:2] == (0, 12)
    assert run_on(1, tmp_path, 17)[:2] == (10, 17)
    assert run_on(3, tmp_path, 20)[:2] == (15, 20)


def test_the_example_is_short() -> None:
    """At most 40 lines deal with the state and its checkpoints; the rest is a training as it would be without them."""
    lines = RUN.read_text().splitlines()
    mine = [line for line in lines if re.search(r"cairn|manager|saved|state\(|set_state|get_state|done|report", line)]
    assert len(mine) <= 40
