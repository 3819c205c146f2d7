"""Kills and stops the run of examples/08_managed_run.py again and again, and compares the end with an undisturbed run.

./dev faults runs --kills 100 --stops 200 [--ranks 2]

A series starts the run under torchrun, or each rank by itself, as Slurm's srun does. A kill (SIGKILL) ends all
processes at a random time. A stop is a SIGTERM to torchrun or to a random rank; or, as sbatch --signal=USR1@60 sends
it, a SIGUSR1 to every rank, not to all at the same time. The run must then end by itself, with a durable checkpoint of
its last step, which is the same on all ranks. The run resumes each time; at the end its model must have the bits of the
undisturbed run.
"""

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import cairn

PROGRAM = Path(__file__).parents[1] / "examples" / "08_managed_run.py"
STEP_SECONDS = 0.02
_END = re.compile(r"from step (\d+) to (\d+), model (\w+)")


# Starts the ranks as srun does: no agent above the ranks handles a signal. Ends when all ranks have ended.
_SRUN = """
import os, socket, subprocess, sys
count, *program = sys.argv[1:]
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
job = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": count}
ranks = [subprocess.Popen(program, env={**job, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(int(count))]
sys.exit(max([abs(rank.wait()) for rank in ranks]))
"""


class Trial:
    """A start of the run, in a session of its own."""

    def __init__(self, directory: Path, ranks: int, steps: int, is_slurm: bool = False) -> None:
        program = [str(PROGRAM), str(directory), "--steps", str(steps), "--step-seconds", str(STEP_SECONDS)]
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        launcher = ["-c", _SRUN, str(ranks), sys.executable] if is_slurm else torchrun
        self.process = subprocess.Popen(
            [sys.executable, *launcher, *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def members(self) -> list[int]:
        """The launcher, its children, which are the ranks, and the processes below, without the writers."""
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

    def rank_processes(self) -> list[int]:
        """The ranks that have not ended."""
        found = []
        for pid in self.members():
            with contextlib.suppress(OSError):
                if (
                    int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    == self.process.pid
                ):
                    found.append(pid)
        return found

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


def send(pids: Sequence[int], number: int, dice: random.Random) -> None:
    """Sends the signal to the processes, in a random order, with pauses of up to a step."""
    for pid in dice.sample(pids, len(pids)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        time.sleep(dice.random() * STEP_SECONDS)


def stop(directory: Path, ranks: int, steps: int, dice: random.Random) -> None:
    """Fails unless the run ends with a durable checkpoint of its last step."""
    is_slurm = dice.random() < 0.5
    trial = Trial(directory, ranks, steps, is_slurm)
    trial.wait_for_training(directory)
    time.sleep(dice.random() * 20 * STEP_SECONDS)
    if is_slurm:
        send(trial.rank_processes(), signal.SIGUSR1, dice)
    else:
        send([dice.choice([trial.process.pid, *trial.rank_processes()])], signal.SIGTERM, dice)
    output = trial.end()
    step, _ = _end_of(output)
    newest = cairn.latest(directory)
    assert newest is not None, output[-4000:]
    assert Path(newest).name == f"step-{step}", (newest, output[-4000:])


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
    parser.add_argument("folder", type=Path, nargs="?", help="where the checkpoints go, and stay (default: removed)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stops", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cairn-runs-") as temporary:
        folder = arguments.folder or Path(temporary)
        series(folder, arguments.ranks, arguments.kills, arguments.stops, arguments.seed)


if __name__ == "__main__":
    main()
