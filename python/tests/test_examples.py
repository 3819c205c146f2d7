"""The examples run as their first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import stock
import torch

import cairn

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
        "place: <pathlib.PosixPath>",
        "scale: float32 [] 2.5",
        "step: 1000",
    ]


@pytest.mark.slow
def test_cpp_says_what_is_missing(reader: Path, tmp_path: Path) -> None:
    done = subprocess.run([reader, tmp_path / "absent"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "absent" in done.stderr


def test_python_saves_and_loads(tmp_path: Path) -> None:
    lines = run(sys.executable, EXAMPLES / "01_save_and_load.py", tmp_path / "checkpoint").splitlines()
    assert "model.weight" in lines
    assert lines == list(cairn.open(tmp_path / "checkpoint"))


def train(folder: Path, directory: str, losses: str, steps: int, *launcher: str) -> dict[str, str]:
    """The losses of the trainer that the demo starts, by step."""
    options = ["--steps", str(steps), "--save-every", "2"]
    script = EXAMPLES / "train_characters.py"
    command = [sys.executable, *launcher, script, "--directory", folder / directory, "--losses", folder / losses]
    run(*command, *options)
    return dict(line.split() for line in (folder / losses).read_text().splitlines())


@pytest.mark.slow
def test_the_trainer_resumes_bit_for_bit(tmp_path: Path) -> None:
    """The core of the demo, small: one process goes on where one, or two ranks, have stopped."""
    whole = train(tmp_path, "whole", "losses-whole", 4)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    for number, launcher in enumerate([(), torchrun]):
        first = train(tmp_path, f"parts-{number}", "losses-first", 2, *launcher)
        resumed = train(tmp_path, f"parts-{number}", "losses-second", 4)
        assert first | resumed == whole
        assert resumed.keys() == {"3", "4"}
