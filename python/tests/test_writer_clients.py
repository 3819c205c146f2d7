"""Megatron-core and NVIDIA's resiliency extension, switched to Cairn by one line.

Their writers derive from ``FileSystemWriter``, write in separate processes and never call prepare_global_plan(): the
client's code and torch's save, and Cairn's engine loads. Two ranks run each program of ``clients/``; the program
compares every loaded bit. The tests compare its files, and the calls that ``cairn.report()`` counted on each rank.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from ranks import run_program
from test_clients import PROGRAMS

import cairn

pytestmark = pytest.mark.slow

RANKS = 2
WHOLE = torch.arange(48.0).reshape(6, 8)


def play(name: str, folder: Path, *arguments: str, ranks: int = RANKS) -> Path:
    run_program(PROGRAMS / f"{name}_job.py", ranks, folder, *arguments, preload=())
    return folder


@pytest.fixture(scope="module")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play("megatron", tmp_path_factory.mktemp("megatron"))


@pytest.fixture(scope="module")
def nvrx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play("nvrx", tmp_path_factory.mktemp("nvrx"))


def calls(folder: Path, phase: str) -> list[tuple[str, bool, int]]:
    """Returns a phase's calls, equal on all ranks: function or storage, whether by the engine, count."""
    told: list[list[Any]] = [json.loads((folder / f"{phase}-{rank}.json").read_text()) for rank in range(RANKS)]
    of_ranks = [[(entry["call"], entry["engine"], entry["count"]) for entry in entries] for entries in told]
    assert of_ranks[0] == of_ranks[1]
    assert all("overrides write_data" in entry["how"] for entry in told[0] if not entry["engine"])
    return of_ranks[0]


def assert_holds(directory: Path, step: int) -> None:
    state = {"w": torch.zeros(6, 8), "b": torch.zeros(3)}
    stock.load(state, directory)
    assert torch.equal(state["w"], WHOLE + 100 * step)
    assert torch.equal(state["b"], torch.full((3,), float(step)))
    assert not cairn.verify(directory).problems
    assert cairn.latest(directory.parent) is not None


def test_megatron_loads_through_the_engine_after_every_kind_of_save(megatron: Path) -> None:
    for phase in ("sync", "fork", "persistent"):
        assert calls(megatron, phase) == [("FileSystemWriterAsync", False, 1), ("load_state_dict", True, 1)], phase
    assert calls(megatron, "switched") == [("load_state_dict", True, 1)]


def test_megatron_leaves_the_files_of_a_run_without_cairn(megatron: Path) -> None:
    for step, name in enumerate(("sync", "fork", "persistent", "stock"), 1):
        names = {path.name for path in (megatron / name).iterdir()}
        assert {".metadata", "common.pt", "metadata.json", "__0_0.distcp", "__1_0.distcp"} <= names
        assert all(entry.startswith("__") for entry in names - {".metadata", "common.pt", "metadata.json"})
        assert_holds(megatron / name, step)


def test_nvrx_saves_with_its_cache_and_loads_through_the_engine(nvrx: Path) -> None:
    for caller in ("fork", "persistent"):
        assert calls(nvrx, caller) == [("FileSystemWriterAsync", False, 3), ("load", True, 3)], caller
        for step in (1, 2, 3):
            assert_holds(nvrx / f"{caller}-{step}", step)


@pytest.mark.parametrize("order", ["before", "after"])
def test_megatron_saves_through_the_engine_with_one_line(tmp_path: Path, order: str) -> None:
    play("megatron_on_cairn", tmp_path, order)
    for phase in ("sync", "fork", "persistent"):
        assert calls(tmp_path, phase) == [("FileSystemWriterAsync", True, 1), ("load_state_dict", True, 1)], phase
    assert calls(tmp_path, "kept") == [("FileSystemWriterAsync", True, 4), ("load_state_dict", True, 5)]
    assert calls(tmp_path, "planner") == [("save", True, 1)]
    if order == "after":  # otherwise the classes of Megatron-core derive from Cairn's
        assert calls(tmp_path, "without") == []
    assert calls(tmp_path, "switched") == [("load_state_dict", True, 1)]
    for step, name in enumerate(("sync", "fork", "persistent", "stock"), 1):
        assert_holds(tmp_path / name, step)
        names = {path.name for path in (tmp_path / name).iterdir()}
        assert {".metadata", "common.pt", "metadata.json"} <= names
    if order == "before":
        play("megatron_on_cairn", tmp_path, order, "resharded", ranks=1)
