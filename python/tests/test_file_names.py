"""Names of data files: DCP's in a directory without a checkpoint; in an overwrite, names unique to the save."""

import re
from pathlib import Path

import pytest
import stock
import torch
from stock import dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

import cairn


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*.distcp")}


def test_a_first_save_has_dcps_names_and_an_overwrite_its_own(checkpoint: Path) -> None:
    seen: list[set[str]] = []
    for step in (1, 2, 3):
        cairn.save({"w": torch.full((9,), float(step))}, checkpoint_id=checkpoint)
        seen.append(names(checkpoint))
    assert seen[0] == {"__0_0.distcp"}
    assert all(re.fullmatch(r"__0_\d{45}\.distcp", name) for name in seen[1] | seen[2])
    assert not seen[1] & seen[2]


def test_a_directory_with_unrelated_files_gives_dcps_names(checkpoint: Path) -> None:
    checkpoint.mkdir()
    (checkpoint / "meta.pt").write_bytes(b"of the client")
    cairn.save({"w": torch.ones(9)}, checkpoint_id=checkpoint)
    assert names(checkpoint) == {"__0_0.distcp"}


def test_a_stock_reader_of_the_old_metadata_never_mixes_two_saves(checkpoint: Path) -> None:
    cairn.save({"w": torch.full((9,), 1.0)}, checkpoint_id=checkpoint)
    reader, planner = dcp.FileSystemReader(checkpoint), DefaultLoadPlanner()
    target = {"w": torch.zeros(9)}
    metadata = reader.read_metadata()
    planner.set_up_planner(target, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    cairn.save({"w": torch.full((9,), 2.0)}, checkpoint_id=checkpoint)
    with pytest.raises(FileNotFoundError):
        reader.read_data(planner.create_local_plan(), planner)
    assert target["w"].tolist() == [0.0] * 9
    stock.load(target, checkpoint)
    assert target["w"].tolist() == [2.0] * 9
