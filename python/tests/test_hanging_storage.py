"""Writes that hang: the save fails on every rank within its deadline, and never commits later."""

import os
import subprocess
import sys
from pathlib import Path

import hanging
import psutil
import pytest
import warm_python

PROGRAM = Path(__file__).parent / "hanging_programs.py"
SECONDS = 300  # for a whole program; without deadlines each program would hang for ever


def start(name: str, folder: Path, library: Path, rank: int = 0) -> "subprocess.Popen[str]":
    environment = {**os.environ, "LD_PRELOAD": str(library), "RANK": str(rank), "WORLD_SIZE": "2"}
    command = [sys.executable, str(PROGRAM), name, str(folder)]
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return warm_python.Popen(command, repeats=True, env=environment, text=True, **outputs)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanging.library(tmp_path_factory.mktemp("hanging"))


@pytest.mark.parametrize(
    "name", ["third", "link", "exit_early", "long_sync", "blocking", "blocking_end", "interruptions", "dropped"]
)
def test_one_rank(name: str, tmp_path: Path, library: Path) -> None:
    program = start(name, tmp_path, library)
    said, _ = program.communicate(timeout=SECONDS)
    assert program.returncode == 0, said


def test_two_ranks(tmp_path: Path, library: Path) -> None:
    programs = [start("ranks", tmp_path, library, rank) for rank in (0, 1)]
    said = [program.communicate(timeout=SECONDS)[0] for program in programs]
    assert [program.returncode for program in programs] == [0, -9], said
    writer = int((tmp_path / "writer").read_text())
    if psutil.pid_exists(writer):
        psutil.wait_procs([psutil.Process(writer)], timeout=SECONDS)
    assert not psutil.pid_exists(writer)


def test_two_ranks_that_block(tmp_path: Path, library: Path) -> None:
    programs = [start("blocking_ranks", tmp_path, library, rank) for rank in (0, 1)]
    said = [program.communicate(timeout=SECONDS)[0] for program in programs]
    assert [program.returncode for program in programs] == [0, 0], said
