"""Damage to every byte of a small checkpoint: no load returns a wrong value, and verify finds the damage."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from same import assert_same

import cairn

STATE = {
    "w": torch.arange(24, dtype=torch.float32).reshape(4, 6),
    "h": torch.arange(3).bfloat16(),
    "n": {"step": 7, "names": ["a", "b"]},
}


def zeros() -> dict[str, Any]:
    return {"w": torch.zeros(4, 6), "h": torch.zeros(3).bfloat16(), "n": {"step": None, "names": None}}


def outcome(directory: Path, verify: Any = "needed") -> str:
    """Returns 'right' or 'error'. A wrong value, or an exception of a class not Cairn's, fails the test."""
    state = zeros()
    try:
        cairn.load(state, checkpoint_id=directory, verify=verify)
    except cairn.Error as error:
        assert error.code != "kInternal", error
        return "error"
    assert_same(state, STATE)
    return "right"


def flips(path: Path) -> Any:
    """Flips a bit of each byte in turn; yields the offset, then restores the byte.

    The position of the bit changes with the offset.
    """
    data = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for offset, byte in enumerate(data):
            file.seek(offset)
            file.write(bytes([byte ^ (1 << offset % 8)]))
            yield offset
            file.seek(offset)
            file.write(bytes([byte]))


def test_bytes_of_our_data_file(checkpoint: Path) -> None:
    cairn.save(STATE, checkpoint_id=checkpoint)
    (path,) = checkpoint.glob("*.distcp")
    unseen, unverified = [], []
    for offset in flips(path):
        if outcome(checkpoint) == "right":
            unseen.append(offset)
        report = cairn.verify(checkpoint, thread_count=1)
        if report or not any(problem.file == path.name for problem in report.problems):
            unverified.append(offset)
    assert not unverified, f"verify overlooks {len(unverified)} bytes: {unverified[:20]}"
    assert len(unseen) < path.stat().st_size, "no flip was noticed by a load"
    assert outcome(checkpoint) == "right"


def test_bytes_of_our_metadata(checkpoint: Path) -> None:
    cairn.save(STATE, checkpoint_id=checkpoint)
    unseen = [offset for offset in flips(checkpoint / ".metadata") if outcome(checkpoint) == "right"]
    assert not unseen, f"loads overlook {len(unseen)} bytes: {unseen[:20]}"


def test_bytes_of_a_stock_data_file(checkpoint: Path) -> None:
    stock.save(STATE, checkpoint)
    for _ in flips(checkpoint / "__0_0.distcp"):
        outcome(checkpoint, "full")


def test_bytes_of_stock_metadata(checkpoint: Path) -> None:
    """Stock metadata has no checksum: a load may return damaged values, but must not fail internally."""
    stock.save(STATE, checkpoint)
    for _ in flips(checkpoint / ".metadata"):
        try:
            cairn.load(zeros(), checkpoint_id=checkpoint)
        except cairn.Error as error:
            assert error.code != "kInternal", error


@pytest.mark.parametrize("length", [512, 4096])
def test_zeroed_blocks(length: int, checkpoint: Path, tmp_path: Path) -> None:
    cairn.save({**STATE, "big": torch.rand(8000)}, checkpoint_id=checkpoint)
    (path,) = checkpoint.glob("*.distcp")
    data = path.read_bytes()
    for start in range(0, len(data), length):
        part = data[start : start + length]
        if not any(part):
            continue
        path.write_bytes(data[:start] + bytes(len(part)) + data[start + length :])
        outcome(checkpoint)
        assert not cairn.verify(checkpoint), f"verify overlooks zeros at {start}"


def test_a_checkpoint_can_be_copied(checkpoint: Path, tmp_path: Path) -> None:
    cairn.save(STATE, checkpoint_id=checkpoint)
    shutil.copytree(checkpoint, tmp_path / "copy")
    assert outcome(tmp_path / "copy") == "right"
    assert cairn.verify(tmp_path / "copy")
