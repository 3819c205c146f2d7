"""Reads from a bucket by URL, of checkpoints that stock torch wrote through fsspec."""

from pathlib import Path
from typing import Any

import pytest
import stock
import tool
import torch
from buckets import file_system, object_store, prefix

import cairn

__all__ = ["object_store", "prefix"]  # fixtures

pytest.importorskip("s3fs")


def sample(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {f"layer{i}": torch.randn(64, 33, generator=generator) for i in range(8)},
        "step": step,
        "rates": [0.1 * step, "text"],
    }


def blank() -> dict[str, Any]:
    return {"model": {f"layer{i}": torch.zeros(64, 33) for i in range(8)}, "step": -1, "rates": []}


def assert_is_sample(state: dict[str, Any], step: int) -> None:
    wanted = sample(step)
    assert (state["step"], state["rates"]) == (wanted["step"], wanted["rates"])
    for name, tensor in wanted["model"].items():
        assert torch.equal(state["model"][name], tensor), name


@pytest.fixture
def run(prefix: str) -> str:
    """The URL of a run of two checkpoints."""
    for step in (10, 20):
        stock.save(sample(step), f"{prefix}/a run/step-{step}")
    return f"{prefix}/a run"


def test_reads_of_stock_checkpoints(run: str, fresh_report: None) -> None:
    state = blank()
    cairn.load(state, checkpoint_id=f"{run}/step-10")
    assert_is_sample(state, 10)
    (call,) = cairn.report().calls
    assert call.engine
    assert cairn.verify(f"{run}/step-20").problems == ()
    checkpoint = cairn.open(f"{run}/step-20/")
    assert checkpoint["step"] == 20
    assert torch.equal(torch.from_numpy(checkpoint["model.layer3"]), sample(20)["model"]["layer3"])
    assert_is_sample(cairn.read(f"{run}/step-20"), 20)
    assert not cairn.diff(f"{run}/step-10", f"{run}/step-10")
    assert cairn.diff(f"{run}/step-10", f"{run}/step-20")


def test_the_newest_of_a_run(run: str, tmp_path: Path) -> None:
    assert cairn.latest(run) == f"{run}/step-20"
    assert [(entry.directory, entry.is_newest) for entry in cairn.checkpoints(run)] == [
        (f"{run}/step-20", True),
        (f"{run}/step-10", False),
    ]
    assert cairn.saves_in_flight(run) == ()
    assert cairn.latest(f"{run}/none") is None
    with pytest.raises(cairn.NotFound, match="step-10, step-20"):
        cairn.open(f"{run}/step-30")


def test_the_tool_reads_urls(run: str) -> None:
    listed = tool.json_of("ls", run)["checkpoints"]
    assert [(entry["name"], entry["state"]) for entry in listed] == [("step-10", "complete"), ("step-20", "complete")]
    assert all(entry["bytes"] and entry["modified_unix_ms"] for entry in listed)
    assert "model.layer3" in tool.text_of("ls", f"{run}/step-10")
    assert tool.text_of("cat", f"{run}/step-10", "step").strip() == "10"
    assert tool.run("verify", f"{run}/step-10").returncode == tool.OK
    assert tool.text_of("status", run) == "no save is in flight\n"
    assert tool.run("ls", f"{run}/none").returncode == tool.UNREADABLE


def test_a_damaged_object_is_found(run: str) -> None:
    files = file_system()
    name = f"{run.removeprefix('s3://')}/step-10/__0_0.distcp"
    content = bytearray(files.cat_file(name))
    content[len(content) // 2] ^= 1
    files.pipe_file(name, bytes(content))
    assert cairn.verify(f"{run}/step-10").problems
    with pytest.raises(cairn.Corrupt):
        cairn.load(blank(), checkpoint_id=f"{run}/step-10", verify="full")


def test_single_files(prefix: str, tmp_path: Path) -> None:
    torch.save(sample(3), tmp_path / "state.pt")
    file_system().put_file(str(tmp_path / "state.pt"), f"{prefix.removeprefix('s3://')}/files/state.pt")
    assert_is_sample(cairn.read(f"{prefix}/files/state.pt"), 3)
