"""Kills and stops the run of examples/08_managed_run.py again and again, and compares the end with an undisturbed run.

python faults/runs.py FOLDER --kills 100 --stops 200 [--ranks 2]

A series starts the run under torchrun. A kill (SIGKILL) ends torchrun and all ranks at a random time. A stop (SIGTERM)
goes to torchrun or to a random rank: the run must end by itself, with exit status 0 and a durable checkpoint of its
last step. The run resumes each time; at the end its model must have the bits of the undisturbed run.
"""

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import cairn

PROGRAM = Path(__file__).parents[1] / "examples" / "08_managed_run.py"
STEP_SECONDS = 0.02
_END = re.compile(r"from step (\d+) to (\d+), model (\w+)")


class Trial:
    """A start of the run under torchrun, in a session of its own."""

    def __init__(self, directory: Path, ranks: int, steps: int) -> None:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        program = [str(PROGRAM), str(directory), "--steps", str(steps), "--step-seconds", str(STEP_SECONDS)]
        self.process = subprocess.Popen(
            [sys.executable, *launcher, *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def members(self) -> list[int]:
        """The processes of torchrun and of the ranks, torchrun first, without the writers."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                name, rest = (entry / "stat").read_text().rsplit(")", 1)
                if not name.endswith("(cairn-writer"):
                    children.setdefault(int(rest.split()[1]), []).append(int(entry.name))
        found = [self.process.pid]
        for pid in found:
            found += children.get(pid, [])
        return found

    def wait_for_training(self, directory: Path) -> None:
        """Returns when the manager of this start is there, or when the run has ended."""
        lease = directory / ".cairn-manager"
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                pids = {int(line[4:]) for line in lease.read_text().splitlines() if line.startswith("pid ")}
                if pids & set(self.members()):
                    return
            time.sleep(0.02)

    def end(self) -> str:
        return self.process.communicate(timeout=300)[0]


def undisturbed(directory: Path, ranks: int, steps: int) -> str:
    """Returns the digest of the model at the end."""
    return _end_of(Trial(directory, ranks, steps).end())[1]


def _end_of(output: str) -> tuple[int, str]:
    match = _END.search(output)
    assert match is not None, output[-4000:]
    return int(match[2]), match[3]


def kill(directory: Path, ranks: int, steps: int, dice: random.Random) -> None:
    trial = Trial(directory, ranks, steps)
    trial.wait_for_training(directory)
    time.sleep(dice.random() * 20 * STEP_SECONDS)
    for pid in trial.members():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    trial.end()


def stop(directory: Path, ranks: int, steps: int, dice: random.Random) -> None:
    """Fails unless the run ends with a durable checkpoint of its last step."""
    trial = Trial(directory, ranks, steps)
    trial.wait_for_training(directory)
    time.sleep(dice.random() * 20 * STEP_SECONDS)
    leases = [int(line[4:]) for line in _lease_of(directory) if line.startswith("pid ")]
    target = dice.choice([trial.process.pid, *leases])  # torchrun, or rank 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(target, signal.SIGTERM)
    output = trial.end()
    step, _ = _end_of(output)
    newest = cairn.latest(directory)
    assert newest is not None, output[-4000:]
    assert Path(newest).name == f"step-{step}", (newest, output[-4000:])


def _lease_of(directory: Path) -> list[str]:
    try:
        return (directory / ".cairn-manager").read_text().splitlines()
    except OSError:
        return []


def series(folder: Path, ranks: int, kills: int, stops: int, seed: int) -> None:
    """Raises AssertionError for a broken promise."""
    dice = random.Random(seed)
    steps = 20 * (kills + stops) + 20
    disturbances = [kill] * kills + [stop] * stops
    dice.shuffle(disturbances)
    directory = folder / "disturbed"
    for number, disturb in enumerate(disturbances):
        disturb(directory, ranks, steps, dice)
        newest = cairn.latest(directory) if directory.exists() else None
        print(f"{number + 1} of {len(disturbances)}: {disturb.__name__}, newest {newest}", flush=True)
    step, digest = _end_of(Trial(directory, ranks, steps).end())
    expected = undisturbed(folder / "whole", ranks, steps)
    assert (step, digest) == (steps, expected), (step, digest, expected)
    print(
        f"{kills} kills and {stops} stops of {ranks} ranks: the model has the bits of the undisturbed run", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stops", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    series(arguments.folder, arguments.ranks, arguments.kills, arguments.stops, arguments.seed)


if __name__ == "__main__":
    main()
