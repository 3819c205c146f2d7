"""Demonstration: train, die in the middle of a save, resume bit for bit, read with stock torch, find a flipped bit.

A trainer with background saves dies too, and its writer process finishes the save. Two ranks with FSDP2 die, and one
process resumes their training.

Prints a report; the exit code is 0 only if every claim in the report holds.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from train_characters import Trainer

import cairn

STEPS = 60
SAVE_EVERY = 10
KILL_AFTER_SAVES = 2  # the kill comes in the next save
LATEST_SECONDS = 60  # a writer that outlived its trainer needs much less
ATTEMPTS_MAX = 10  # a kill can come too late, after the save; then the demo tries again
FLIPPED_KEY = "model.layers.layers.0.linear1.weight"


class Report:
    """Prints claims as they are tried, and counts the claims that failed."""

    def __init__(self) -> None:
        self.failed = 0
        self.started = time.monotonic()

    def title(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def note(self, text: str) -> None:
        print(f"         {text}", flush=True)

    def claim(self, holds: bool, text: str) -> None:
        self.failed += not holds
        print(f"   {'ok  ' if holds else 'FAIL'}  {text}", flush=True)

    def finish(self) -> int:
        seconds = time.monotonic() - self.started
        verdict = "Every claim holds." if self.failed == 0 else f"{self.failed} claims do NOT hold."
        print(f"\n{verdict} {seconds:.0f} s")
        return 1 if self.failed else 0


def start_trainer(
    directory: Path, losses: Path, *options: str, launcher: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("train_characters.py")
    command = [sys.executable, *launcher, str(script), "--directory", str(directory), "--losses", str(losses)]
    command += ["--steps", str(STEPS), "--save-every", str(SAVE_EVERY), *options]
    # The launcher's and the ranks' messages about a killed rank are long, and expected.
    errors = subprocess.DEVNULL if launcher else None
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True)


def train(directory: Path, losses: Path, *options: str) -> str:
    """Trains to the end, and returns the trainer's output."""
    trainer = start_trainer(directory, losses, *options)
    output, _ = trainer.communicate()
    if trainer.returncode != 0:
        raise SystemExit(f"the trainer failed with {trainer.returncode}")
    return output


def losses_of(file: Path) -> dict[int, str]:
    lines = [line.split() for line in file.read_text().splitlines()]
    return {int(line[0]): line[1] for line in lines if len(line) == 2}


def kill_in_a_save(directory: Path, losses: Path) -> Path | None:
    """Trains, and kills the trainer during the write of a data file.

    Returns the private folder of the dead save; None if the save was finished.
    """
    trainer = start_trainer(directory, losses)
    assert trainer.stdout is not None
    saves = 0
    while saves < KILL_AFTER_SAVES and (line := trainer.stdout.readline()):
        saves += line.startswith("saved")
    seen: list[Path] = []
    while not seen and trainer.poll() is None:
        seen = list(directory.glob(".cairn-*/*.distcp"))
    trainer.kill()
    trainer.communicate()
    # A save that continues renames its file: a file still in its place was not finished.
    left = [file.parent for file in seen if file.exists()]
    return left[0] if left else None


def kill_a_rank_in_a_save(directory: Path, losses: Path) -> bool:
    """Trains on two ranks, and kills one during the write of a data file. Returns whether the save did not commit."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    trainer = start_trainer(directory, losses, launcher=launcher)
    assert trainer.stdout is not None
    saves, victim = 0, 0
    while saves < KILL_AFTER_SAVES and (line := trainer.stdout.readline()):
        saves += line.startswith("saved")
        if line.startswith("rank 1"):
            victim = int(line.split()[-1])
    while not list(directory.glob(".cairn-*/*.distcp")) and trainer.poll() is None:
        pass
    if trainer.poll() is None:
        os.kill(victim, signal.SIGKILL)
    trainer.communicate()  # the launcher ends the second rank, too
    return trainer.returncode != 0 and step_of(directory) < max(losses_of(losses))


def step_of(directory: Path) -> int:
    return int(cairn.open(directory)["step"])


def tell_of_the_kill(report: Report, directory: Path, scratch: Path) -> int:
    """Chapter 2: kills in a save, and returns the step of the remaining checkpoint."""
    folder = None
    for attempt in range(ATTEMPTS_MAX):
        folder = kill_in_a_save(directory, scratch / f"losses-killed-{attempt}")
        if folder is not None:
            break
        shutil.rmtree(directory)  # the kill came too late: start again
    if folder is None:
        raise SystemExit(f"no kill in {ATTEMPTS_MAX} met a save")
    last_step = max(losses_of(scratch / f"losses-killed-{attempt}"))
    kept = step_of(directory)
    report.claim(kept == last_step - SAVE_EVERY, f"killed while step {last_step} was being written over step {kept}")
    megabytes = sum(file.stat().st_size for file in folder.glob("*.distcp")) / 1e6
    report.note(f"left behind: {folder.name}/ with {megabytes:.1f} MB and no name of a checkpoint")
    report.claim(bool(cairn.verify(directory)), f"the checkpoint of step {kept} is whole")
    return kept


def tell_of_the_save_that_outlives(report: Report, directory: Path, scratch: Path, losses: dict[int, str]) -> None:
    last_step = (KILL_AFTER_SAVES + 1) * SAVE_EVERY
    trainer = start_trainer(directory, scratch / "losses-outlived", "--in-background", "--die-at", str(last_step))
    trainer.communicate()
    found = cairn.latest(directory, wait=0)
    kept = step_of(directory) if found else 0
    dead = trainer.returncode == -signal.SIGKILL
    report.claim(dead, f"killed when cairn.async_save of step {last_step} had returned")
    in_flight = [save for save in cairn.saves_in_flight(directory) if not save.is_leftover]
    state = "its writer is at work" if in_flight else "its writer was quick"
    report.note(f"at that moment the checkpoint is of step {kept}, and {state}")
    found = cairn.latest(directory, wait=LATEST_SECONDS)
    finished = found == str(directory) and step_of(directory) == last_step
    report.claim(finished and bool(cairn.verify(directory)), f"cairn.latest finds step {last_step}, whole")

    output = train(directory, scratch / "losses-after-outlived", "--in-background")
    resumed = losses_of(scratch / "losses-after-outlived")
    wanted = {step: loss for step, loss in losses.items() if step > last_step}
    report.claim(f"resumed at step {last_step}" in output, f"resumed at step {last_step}: no step is lost")
    report.claim(resumed == wanted, f"losses of steps {last_step + 1} to {STEPS} equal the first run's bit for bit")


def tell_of_the_killed_rank(report: Report, scratch: Path, losses: dict[int, str]) -> None:
    directory = scratch / "killed-rank"
    for attempt in range(ATTEMPTS_MAX):
        losses_of_two = scratch / f"losses-killed-rank-{attempt}"
        if kill_a_rank_in_a_save(directory, losses_of_two):
            break
        shutil.rmtree(directory)
    else:
        raise SystemExit(f"no kill of a rank in {ATTEMPTS_MAX} met a save")
    before = losses_of(losses_of_two)
    last_step, kept = max(before), step_of(directory)
    report.claim(kept == last_step - SAVE_EVERY, f"rank 1 killed while both wrote step {last_step} over step {kept}")
    equal_before = before == {step: loss for step, loss in losses.items() if step <= last_step}
    report.claim(equal_before, "until then, the losses of both ranks together were those of one process")
    files = len(cairn.open(directory).files)
    report.claim(bool(cairn.verify(directory)), f"the checkpoint of step {kept}, in {files} files, is whole")

    output = train(directory, scratch / "losses-of-one")
    resumed = losses_of(scratch / "losses-of-one")
    wanted = {step: loss for step, loss in losses.items() if step > kept}
    report.claim(f"resumed at step {kept}" in output, f"one process resumed at step {kept}")
    report.claim(resumed == wanted, f"losses of steps {kept + 1} to {STEPS} equal the first run's bit for bit")
    names = {path.name for path in directory.iterdir()}
    report.claim(names == {".metadata", *cairn.open(directory).files}, "what the killed save left behind is gone")


def same(one: Any, other: Any) -> bool:
    """Whether both are equal bit for bit, including NaNs and signs of zeros."""
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.contiguous().view(-1).view(torch.uint8).equal(other.contiguous().view(-1).view(torch.uint8))
        )
    return type(one) is type(other) and one == other


def flat(state: Any, prefix: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Returns every leaf of a nested state by its path."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else None
    if items is None:
        return {prefix: state}
    return {path: leaf for key, value in items for path, leaf in flat(value, (*prefix, key)).items()}


def loaded(load: Callable[..., Any], directory: Path) -> dict[tuple[Any, ...], Any]:
    """Returns the leaves of a fresh trainer's state, filled from a checkpoint."""
    state = Trainer(torch.zeros(1, dtype=torch.int64)).state()
    load(state, checkpoint_id=directory, no_dist=True)
    return flat(state)


def equal(one: dict[tuple[Any, ...], Any], other: dict[tuple[Any, ...], Any]) -> bool:
    return one.keys() == other.keys() and all(same(leaf, other[path]) for path, leaf in one.items())


def tell_of_stock_torch(report: Report, directory: Path) -> None:
    by_torch = loaded(dcp.load, directory)
    tensors = sum(isinstance(leaf, torch.Tensor) for leaf in by_torch.values())
    report.claim(
        equal(by_torch, loaded(cairn.load, directory)) and by_torch[("step",)] == STEPS,
        f"stock torch {torch.__version__} loads {tensors} tensors and {len(by_torch) - tensors} values: the same bits",
    )


def run_verify(directory: Path) -> tuple[int, str]:
    done = subprocess.run(["cairn", "verify", str(directory)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def tell_of_the_flipped_bit(report: Report, directory: Path, copy: Path) -> None:
    shutil.copytree(directory, copy)
    chunk = cairn.open(copy).info(FLIPPED_KEY).chunks[0]
    place = chunk.offset + chunk.length // 2 | 3  # the last byte of a little-endian float: sign and exponent
    with (copy / chunk.file).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x40]))
    report.note(f"bit 6 of byte {place} of {chunk.file}, in {FLIPPED_KEY}")

    code, output = run_verify(copy)
    named = FLIPPED_KEY in output and chunk.file in output
    report.claim(code == 1 and named, f"cairn verify finds it: exit code {code}")
    report.note(next((line for line in output.splitlines() if "problem" in line), output.strip()))

    good, bad = (loaded_by_torch(path) for path in (directory, copy))
    differing = (good != bad).nonzero()
    index = tuple(differing[0].tolist()) if len(differing) else ()
    report.claim(len(differing) == 1, "stock torch loads it without a word")
    if index:
        report.note(f"the weight at {list(index)} is {bad[index]:g} now and was {good[index]:g}")

    try:
        cairn.load({"model": {FLIPPED_KEY.removeprefix("model."): torch.empty_like(good)}}, checkpoint_id=copy)
        report.claim(False, "cairn.load refuses it")
    except cairn.Corrupt as error:
        report.claim(error.key == FLIPPED_KEY, "cairn.load refuses it, and says where")


def loaded_by_torch(directory: Path) -> torch.Tensor:
    """Returns the tensor as loaded by stock torch."""
    shape = cairn.open(directory).info(FLIPPED_KEY).shape
    state = {FLIPPED_KEY: torch.zeros(shape)}
    dcp.load(state, checkpoint_id=directory, no_dist=True)
    return state[FLIPPED_KEY]


def tell(report: Report, scratch: Path) -> None:
    plain, killed = scratch / "uninterrupted", scratch / "killed"
    report.title(f"1. Train a character transformer for {STEPS} steps, saving over one checkpoint every {SAVE_EVERY}.")
    train(plain, scratch / "losses")
    losses = losses_of(scratch / "losses")
    first, last = (float.fromhex(losses[step]) for step in (1, STEPS))
    report.claim(len(losses) == STEPS and last < first, f"the loss goes from {first:.3f} to {last:.3f}")
    size = sum(file.stat().st_size for file in plain.iterdir()) / 1e6
    report.note(f"a checkpoint of {size:.1f} MB in {len(list(plain.iterdir()))} files")

    report.title("2. Train again, and kill the trainer (SIGKILL) in the middle of a save.")
    kept = tell_of_the_kill(report, killed, scratch)

    report.title("3. Resume from the newest complete checkpoint.")
    output = train(killed, scratch / "losses-resumed")
    resumed = losses_of(scratch / "losses-resumed")
    report.claim(f"resumed at step {kept}" in output and min(resumed) == kept + 1, f"resumed at step {kept}")
    wanted = {step: loss for step, loss in losses.items() if step > kept}
    report.claim(resumed == wanted, f"losses of steps {kept + 1} to {STEPS} equal the first run's bit for bit")
    report.note(f"step {STEPS}: {resumed.get(STEPS)} and {losses[STEPS]}")
    both = equal(loaded(cairn.load, plain), loaded(cairn.load, killed))
    report.claim(both, f"the checkpoints of step {STEPS} hold the same bits in both runs")
    report.claim(not list(killed.glob(".cairn-*")), "what the killed save left behind is gone")

    report.title("4. Save in the background, and kill the trainer (SIGKILL) as soon as the call has returned.")
    outlived = scratch / "outlived"
    tell_of_the_save_that_outlives(report, outlived, scratch, losses)
    both = equal(loaded(cairn.load, plain), loaded(cairn.load, outlived))
    report.claim(both, f"the checkpoints of step {STEPS} hold the same bits in both runs")

    report.title("5. Train the same on two ranks (FSDP2, gloo), kill one in a save, and resume on one process.")
    tell_of_the_killed_rank(report, scratch, losses)

    report.title("6. Load the same files with stock torch.distributed.checkpoint.")
    tell_of_stock_torch(report, killed)

    report.title("7. Check every byte.")
    code, output = run_verify(killed)
    report.claim(code == 0, f"cairn verify: exit code {code}")
    for line in output.splitlines()[1:]:
        report.note(line.strip())

    report.title("8. Flip one bit in a copy.")
    tell_of_the_flipped_bit(report, killed, scratch / "flipped")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, help="where checkpoints go, and stay (default: a temporary directory)")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # stock torch, at every call
    report = Report()
    print(f"Cairn {cairn.__version__}, torch {torch.__version__}, {os.cpu_count()} cores", flush=True)
    if arguments.scratch is not None:
        arguments.scratch.mkdir(parents=True)
        tell(report, arguments.scratch)
    else:
        with tempfile.TemporaryDirectory(prefix="cairn-demo-") as scratch:
            tell(report, Path(scratch))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
