"""The logger `cairn` gets a line for each save and load, on the coordinator; a program's end prints nothing."""

import logging
import sys
from pathlib import Path

import pytest
import torch
import warm_python
from ranks import Gang

import cairn

# The logger keeps the handler, the handler's class keeps the globals of the script, and the globals keep the future.
PROGRAM = """
import logging, sys, torch, cairn

class Handler(logging.Handler):
    def emit(self, record): pass

logging.getLogger("cairn").addHandler(Handler())
future = cairn.async_save({"w": torch.ones(3)}, checkpoint_id=sys.argv[1])
future.result()
opened = cairn.open(sys.argv[1])
"""


def test_a_script_whose_objects_outlive_python_prints_nothing(checkpoint: Path) -> None:
    done = warm_python.run(
        [sys.executable, "-c", PROGRAM, str(checkpoint)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout + done.stderr == ""


def test_each_save_and_load_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = {"w": torch.ones(1000), "step": 1}
    with caplog.at_level(logging.INFO, "cairn"):
        cairn.save(state, checkpoint_id=tmp_path / "global_step-0012")
        cairn.async_save(state, checkpoint_id=tmp_path / "13").result()
        cairn.load(state, checkpoint_id=tmp_path / "global_step-0012")
        cairn.save(state, checkpoint_id=tmp_path / "last")
    saved, background, loaded, last = caplog.messages
    assert saved.startswith(f"saved '{tmp_path}/global_step-0012', step 12: ")
    assert background.startswith(f"saved in the background '{tmp_path}/13', step 13: ")
    assert loaded.startswith(f"loaded '{tmp_path}/global_step-0012', step 12: ")
    assert last.startswith(f"saved '{tmp_path}/last': ")
    for line in caplog.messages:
        words = line.rpartition(": ")[2].split()
        assert words[1:3] == ["bytes", "in"] and words[4] == "s," and words[6] == "MB/s"
        assert 4000 <= int(words[0]) < 20_000
        assert float(words[3]) >= 0 and float(words[5]) >= 0
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_a_filter_that_raises_fails_no_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError("a fault of the caller's filter")

    log = logging.getLogger("cairn")
    log.addFilter(refuse)
    try:
        with caplog.at_level(logging.INFO, "cairn"):
            cairn.save({"step": 1}, checkpoint_id=tmp_path / "1")
            cairn.async_save({"step": 2}, checkpoint_id=tmp_path / "2").result()
    finally:
        log.removeFilter(refuse)
    assert cairn.latest(tmp_path) == str(tmp_path / "2")


def lines_of_rank(directory: Path) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("cairn")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        state = {"w": torch.ones(4)}
        cairn.save(state, checkpoint_id=directory / "1")
        cairn.async_save(state, checkpoint_id=directory / "2").result()
        cairn.load(state, checkpoint_id=directory / "2")
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    return lines


def test_only_the_coordinator_logs(two: Gang, tmp_path: Path) -> None:
    coordinator, other = two.run(lines_of_rank, tmp_path)
    assert [line.split(" '")[0] for line in coordinator] == ["saved", "saved in the background", "loaded"]
    assert all("by rank 0 of 2" in line for line in coordinator)
    assert other == []
