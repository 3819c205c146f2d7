"""The examples run as their first lines describe."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import commands
import pytest
import stock
import torch
from ranks import run_program
from same import assert_same, blank

import cairn

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


run = functools.partial(commands.run, timeout=600)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program 02, compiled as a user would."""
    program = tmp_path_factory.mktemp("examples") / "reader"
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    libraries = [ROOT / "build/release/src/libcairn.a", "-lisal", "-lpthread"]
    source = EXAMPLES / "02_read_torch_checkpoint.cc"
    run(os.environ.get("CXX", "c++"), *flags, source, *libraries, "-o", program)
    return program


@pytest.mark.slow
def test_cpp_reads_a_checkpoint_of_stock_torch(reader: Path, tmp_path: Path) -> None:
    state = {
        "model": {"weight": torch.arange(12.0).reshape(3, 4) / 4, "mask": torch.ones(2, dtype=torch.bool)},
        "scale": torch.tensor(2.5),
        "step": 1000,
        "history": [1, 2.5, "three", None],
        "place": Path("/somewhere"),
    }
    stock.save(state, tmp_path)
    lines = run(reader, tmp_path).splitlines()
    assert sorted(lines) == [
        "history: [1, 2.5, 'three', None]",
        "model.mask: bool [2]",
        "model.weight: float32 [3, 4] 0 0.25 0.5 0.75",
        "place: <pathlib.PosixPath('/', 'somewhere')>",
        "scale: float32 [] 2.5",
        "step: 1000",
    ]


@pytest.mark.slow
def test_cpp_names_the_missing_checkpoint(reader: Path, tmp_path: Path) -> None:
    done = subprocess.run([reader, tmp_path / "absent"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "absent" in done.stderr


def test_python_saves_and_loads(tmp_path: Path) -> None:
    lines = run(sys.executable, EXAMPLES / "01_save_and_load.py", tmp_path / "checkpoint").splitlines()
    assert "model.weight" in lines
    assert lines == list(cairn.open(tmp_path / "checkpoint"))


def test_python_saves_in_the_background_and_goes_on(tmp_path: Path) -> None:
    program = EXAMPLES / "04_save_in_the_background.py"
    whole = run(sys.executable, program, tmp_path / "whole", "--steps", "5")
    first = run(sys.executable, program, tmp_path / "parts", "--steps", "2")
    second = run(sys.executable, program, tmp_path / "parts", "--steps", "5")
    assert "resumed at step 2" in second.splitlines()

    def losses(told: str) -> list[tuple[str, ...]]:
        return re.findall(r"^step (\d+), loss (\S+?)(?:,|$)", told, re.MULTILINE)

    assert losses(first) + losses(second) == losses(whole)
    assert [step for step, _ in losses(whole)] == ["1", "2", "3", "4", "5"]
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"step-2", "step-4"}
    assert cairn.open(tmp_path / "parts" / "step-4")["step"] == 4


def train(
    folder: Path, directory: str, losses: str, steps: int, launcher: Sequence[str] = (sys.executable,)
) -> dict[str, str]:
    """Runs the demo's trainer and returns its losses by step."""
    options = ["--steps", str(steps), "--save-every", "2"]
    script = EXAMPLES / "train_characters.py"
    command = [*launcher, script, "--directory", folder / directory, "--losses", folder / losses]
    run(*command, *options)
    return dict(line.split() for line in (folder / losses).read_text().splitlines())


@pytest.mark.slow
def test_the_trainer_resumes_bit_for_bit(tmp_path: Path) -> None:
    """The core of the demo, small: one process resumes a training that one or two ranks stopped."""
    whole = train(tmp_path, "whole", "losses-whole", 4)
    for number, launcher in enumerate([[sys.executable], commands.launcher(2)]):
        first = train(tmp_path, f"parts-{number}", "losses-first", 2, launcher)
        resumed = train(tmp_path, f"parts-{number}", "losses-second", 4)
        assert first | resumed == whole
        assert resumed.keys() == {"3", "4"}


@pytest.mark.slow
def test_a_save_in_the_background_outlives_the_trainer(tmp_path: Path) -> None:
    whole = train(tmp_path, "whole", "losses-whole", 4)
    script = EXAMPLES / "train_characters.py"
    options = ["--steps", "4", "--save-every", "2", "--in-background"]
    command = [sys.executable, script, "--directory", tmp_path / "dies", "--losses", tmp_path / "losses", *options]
    died = subprocess.run([*map(str, command), "--die-at", "2"], check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL
    assert cairn.latest(tmp_path / "dies", wait=120) == str(tmp_path / "dies")
    assert "resumed at step 2" in run(*command)
    resumed = dict(line.split() for line in (tmp_path / "losses").read_text().splitlines())
    assert resumed == {step: loss for step, loss in whole.items() if int(step) > 2}


MANY_RANKS = EXAMPLES / "03_train_on_many_ranks.py"


def torchrun(program: Path, ranks: int, *arguments: object) -> str:
    """Launches a program by torchrun, as a user does."""
    return commands.torchrun(ranks, program, *map(str, arguments), timeout=600)


class Story:
    """The losses and models that a run of program 03 printed."""

    def __init__(self, told: str) -> None:
        self.losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+), loss (\S+)", told)}
        self.models = re.findall(r"at step \d+, model (\w+)|saved step \d+, model (\w+)", told)


def trained(ranks: int, directory: Path, layout: str, start: Callable[..., str] = run_program) -> Story:
    """Trains to step six, with a save after step three.

    If the directory holds a save, the training resumes from the save.
    """
    return Story(start(MANY_RANKS, ranks, directory, "--layout", layout, "--steps", 6, "--save-at", 3))


def assert_goes_on(story: Story, whole: Story) -> None:
    """The resumed run starts with every bit of the model. Its losses are equal up to the order in which ranks add."""
    assert story.models[0][0] == whole.models[0][1] != ""
    assert list(story.losses) == [4, 5, 6]
    for step, loss in story.losses.items():
        assert loss == pytest.approx(whole.losses[step], rel=1e-5)


def assert_everybody_reads(directory: Path, reader: Path) -> None:
    """Reads the checkpoint by one process with Cairn and with stock torch, by C++, and by the tool."""
    tensors = [name for name in cairn.open(directory) if name.startswith("model.")]
    assert len(tensors) == 12
    opened = cairn.open(directory)
    states: list[dict[str, Any]] = []
    for load in (cairn.load, stock.dcp.load):
        state = {name: blank(torch.from_numpy(opened[name])) for name in tensors}
        load(state, checkpoint_id=directory, no_dist=True)
        states.append(state)
    assert_same(states[0], states[1])
    assert all(state.isfinite().all() and state.ne(0).any() for state in states[0].values())

    lines = run(reader, directory).splitlines()
    assert "step: 3" in lines
    for name in tensors:
        first = states[0][name].flatten()[:4]
        (line,) = (line for line in lines if line.startswith(f"{name}: float32 "))
        assert [float(number) for number in line.split("]")[1].split()] == pytest.approx(first.tolist(), rel=1e-5)

    tool = shutil.which("cairn")
    assert tool is not None
    assert "step" in json.dumps(json.loads(run(tool, "inspect", directory, "--json")))
    run(tool, "verify", directory)


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Story]:
    """The checkpoint that four ranks with FSDP2 saved half-way, and the output of the whole run."""
    directory = tmp_path_factory.mktemp("many") / "fsdp"
    return directory, trained(4, directory, "fsdp", torchrun)


@pytest.mark.slow
def test_fsdp_goes_on_with_any_number_of_ranks(fsdp: tuple[Path, Story], reader: Path) -> None:
    directory, whole = fsdp
    assert list(whole.losses) == [1, 2, 3, 4, 5, 6]
    assert_everybody_reads(directory, reader)
    as_many = trained(4, directory, "fsdp")
    assert_goes_on(as_many, whole)
    assert as_many.losses == {step: whole.losses[step] for step in (4, 5, 6)}, "the same to the last digit shown"
    for ranks in (3, 2):
        assert_goes_on(trained(ranks, directory, "fsdp"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tensor", "hsdp", "ddp"])
def test_layouts_resume_from_fsdp_and_fsdp_from_layouts(
    layout: str, fsdp: tuple[Path, Story], reader: Path, tmp_path: Path
) -> None:
    whole = trained(4, tmp_path / layout, layout)
    assert_everybody_reads(tmp_path / layout, reader)
    sizes = [path.stat().st_size for path in (tmp_path / layout).glob("*.distcp")]
    assert len(sizes) == 4
    assert max(sizes) < 1.3 * sum(sizes) / 4, "each rank has written about a quarter"
    assert_goes_on(trained(2, tmp_path / layout, "fsdp"), whole)
    assert_goes_on(trained(4, fsdp[0], layout), fsdp[1])
