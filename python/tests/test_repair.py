"""`cairn.repair`: lost and broken metadata, lost files, several saves in a directory, and kills during the repair."""

import functools
import os
import random
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import stock
import torch
from kills import Killer
from same import assert_same
from sharded_states import assert_whole, sharded

import cairn
from cairn import _engine
from cairn.checkpointer import RankInfo, make_sync_checkpointer

if TYPE_CHECKING:
    from ranks import Gang

NOTES = {"metrics": {"loss": 0.5}}
WHOLE = {"w": torch.arange(4096.0).reshape(64, 64), "v": torch.arange(24, dtype=torch.int32).reshape(12, 2)}


def state_of(step: int) -> dict[str, Any]:
    return {
        "model": {"w": torch.full((100, 7), float(step)), "half": torch.arange(9, dtype=torch.bfloat16)},
        "optimizer": {"groups": [{"lr": 0.1}, {"lr": 0.2}], "none": torch.zeros(0, 4)},
        "step": step,
        "quantised": torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8),
        "scalar": torch.tensor(float(step)),
    }


def save(directory: Path, step: int = 1, **options: Any) -> None:
    cairn.save(state_of(step), checkpoint_id=directory, no_dist=True, **options)


def assert_holds(directory: Path, step: int) -> None:
    """Both libraries load the state of the step, and no byte is damaged."""
    assert cairn.verify(directory), cairn.verify(directory).problems
    for load in (functools.partial(cairn.load, no_dist=True), stock.load):
        found = state_of(0)
        if load is stock.load:
            load(found, directory)
        else:
            load(found, checkpoint_id=directory)
        assert_same(found, state_of(step))


def content_of(root: Path) -> dict[str, bytes]:
    files = (file for file in root.rglob("*") if file.is_file() and file.name != ".cairn-lock")
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


def save_id_in(directory: Path) -> str:
    save_id = cairn.open(directory).save_id
    assert save_id is not None
    return save_id


def test_lost_metadata_is_rebuilt(checkpoint: Path) -> None:
    save(checkpoint)
    (checkpoint / ".metadata").unlink()
    before = content_of(checkpoint)
    tried = cairn.repair(checkpoint, dry_run=True)
    assert (tried.metadata, tried.is_complete) == ("rebuilt", True)
    assert content_of(checkpoint) == before
    report = cairn.repair(checkpoint)
    assert report
    assert (report.metadata, report.files, report.problems, report.damaged_name) == ("rebuilt", 1, (), None)
    assert (report.tensors, report.values) == (tried.tensors, tried.values)
    assert_holds(checkpoint, 1)
    assert cairn.latest(checkpoint) == os.fspath(checkpoint)
    assert cairn.repair(checkpoint).metadata == "good"


def test_broken_metadata_is_kept_and_gives_notes_and_order(checkpoint: Path) -> None:
    save(checkpoint, notes=NOTES)
    whole = (checkpoint / ".metadata").read_bytes()
    broken = bytearray(whole)
    broken[200] ^= 8
    (checkpoint / ".metadata").write_bytes(broken)
    report = cairn.repair(checkpoint)
    assert (report.metadata, report.is_complete, report.damaged_name) == ("rebuilt", True, ".metadata.damaged")
    assert "CRC" in report.warnings[0]
    assert (checkpoint / ".metadata.damaged").read_bytes() == bytes(broken)
    assert cairn.open(checkpoint).notes == NOTES
    assert_holds(checkpoint, 1)
    (checkpoint / ".metadata").write_bytes(whole[: len(whole) // 2])
    report = cairn.repair(checkpoint)
    assert (report.metadata, report.damaged_name) == ("rebuilt", ".metadata.damaged-2")
    assert cairn.open(checkpoint).notes == {}
    assert_holds(checkpoint, 1)


def test_every_cut_and_flip_of_the_metadata_is_repaired(tmp_path: Path) -> None:
    seed = 20261126
    chosen = random.Random(seed)
    save(tmp_path / "saved", notes=NOTES)
    whole = (tmp_path / "saved" / ".metadata").read_bytes()
    for number in range(60):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "saved", directory)
        broken = bytearray(whole)
        place = chosen.randrange(len(whole))
        if number % 2:
            broken[place] ^= 1 << chosen.randrange(8)
        else:
            del broken[place:]
        (directory / ".metadata").write_bytes(broken)
        report = cairn.repair(directory)
        where = f"seed {seed}, round {number}, byte {place} of {len(whole)}: {report}"
        assert (report.metadata, report.is_complete) == ("rebuilt", True), where
        assert (directory / ".metadata.damaged").read_bytes() == bytes(broken), where
        assert cairn.verify(directory), where
        assert_same(cairn.read(directory)["model"], state_of(1)["model"], where)


def test_a_cut_or_flipped_data_file_is_never_taken(tmp_path: Path) -> None:
    seed = 20261127
    chosen = random.Random(seed)
    save(tmp_path / "saved")
    (tmp_path / "saved" / ".metadata").unlink()
    whole = (tmp_path / "saved" / "__0_0.distcp").read_bytes()
    for number in range(40):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "saved", directory)
        place = chosen.randrange(len(whole) - 400 if number % 2 else 0, len(whole))
        damaged = bytearray(whole)
        if number % 2:
            damaged[place] ^= 1 << chosen.randrange(8)
        else:
            del damaged[place:]
        (directory / "__0_0.distcp").write_bytes(damaged)
        before = content_of(directory)
        report = cairn.repair(directory, partial=True)
        where = f"seed {seed}, round {number}, byte {place} of {len(whole)}: {report}"
        if report.metadata == "rebuilt":  # the flip is before the trailer: the checksums of the items show it
            assert number % 2, where
            assert not cairn.verify(directory), where
            continue
        assert report.metadata == "unusable", where
        assert "__0_0.distcp" in str(report.problems[0]), where
        assert content_of(directory) == before, where


def test_good_metadata_is_never_touched(checkpoint: Path) -> None:
    save(checkpoint)
    (checkpoint / "foreign.txt").write_text("foreign")
    before = content_of(checkpoint)
    stamp = (checkpoint / ".metadata").stat()
    for options in ({}, {"partial": True}, {"save": save_id_in(checkpoint)}, {"save": "0" * 32}):
        assert cairn.repair(checkpoint, **options).metadata == "good"
    assert content_of(checkpoint) == before
    assert (checkpoint / ".metadata").stat().st_ino == stamp.st_ino


def test_an_intact_metadata_whose_file_is_lost_stays(checkpoint: Path) -> None:
    save(checkpoint)
    (checkpoint / "__0_0.distcp").unlink()
    before = content_of(checkpoint)
    report = cairn.repair(checkpoint, partial=True)
    assert (report.metadata, report.is_complete, report.missing) == ("data lost", False, ("__0_0.distcp",))
    assert {lost.key for lost in report.lost} == {"model.w", "model.half", "quantised", "scalar"}
    assert "step" in report.lost_values
    assert content_of(checkpoint) == before


def save_ranks(directory: Path, step: int = 1) -> None:
    import torch.distributed as dist

    state = {**sharded(WHOLE), "step": step, "own": {f"of_{dist.get_rank()}": torch.full((3,), dist.get_rank())}}
    cairn.save(state, checkpoint_id=directory)


def load_ranks(directory: Path) -> None:
    state = {**sharded({key: torch.zeros_like(value) for key, value in WHOLE.items()}), "step": 0}
    cairn.load(state, checkpoint_id=directory)
    assert state["step"] == 1
    assert_whole(state, WHOLE)


def test_ranks_metadata_is_rebuilt(three: "Gang", two: "Gang", tmp_path: Path) -> None:
    for gang in (three, two):
        directory = tmp_path / str(gang.size)
        gang.run(save_ranks, directory)
        expected = cairn.read(directory)
        (directory / ".metadata").unlink()
        report = cairn.repair(directory)
        assert (report.metadata, report.is_complete, report.files) == ("rebuilt", True, gang.size)
        assert cairn.verify(directory)
        gang.run(load_ranks, directory)
        rebuilt = cairn.read(directory)
        assert set(rebuilt["own"]) == set(expected["own"])
        assert_same(dict(sorted(rebuilt["own"].items())), dict(sorted(expected["own"].items())))
        found = {"w": torch.zeros(64, 64), "v": torch.zeros(12, 2, dtype=torch.int32), "step": 0}
        stock.load(found, directory)
        assert_same(found, {**WHOLE, "step": 1})


@pytest.mark.parametrize("lost_rank", [0, 1, 2])
def test_a_lost_file_of_a_rank_is_named(three: "Gang", tmp_path: Path, lost_rank: int) -> None:
    directory = tmp_path / "step-1"
    three.run(save_ranks, directory)
    kept = (directory / f"__{lost_rank}_0.distcp").read_bytes()
    (directory / f"__{lost_rank}_0.distcp").unlink()
    (directory / ".metadata").unlink()
    before = content_of(directory)
    report = cairn.repair(directory)
    assert (report.metadata, report.is_complete, report.missing_files) == ("unusable", False, 1)
    assert report.missing == (f"__{lost_rank}_0.distcp",)
    lost = {entry.key: entry for entry in report.lost}
    begin, end = [(0, 22), (22, 44), (44, 64)][lost_rank]
    assert lost["w"].shape == (64, 64)
    assert lost["w"].regions == (((begin, 0), (end - begin, 64)),)
    assert lost["w"].elements == (end - begin) * 64
    assert content_of(directory) == before

    report = cairn.repair(directory, partial=True)
    assert (report.metadata, report.is_complete) == ("rebuilt", False)
    other = (lost_rank + 1) % 3
    opened = cairn.open(directory)
    assert opened[f"own.of_{other}"].tolist() == [other] * 3
    with pytest.raises(cairn.Corrupt):
        opened["w"]
    assert cairn.latest(directory) is None
    assert [entry.state for entry in cairn.checkpoints(directory)] == ["incomplete"]
    assert not cairn.verify(directory)
    assert cairn.repair(directory, partial=True).metadata == "data lost"

    (directory / f"__{lost_rank}_0.distcp").write_bytes(kept)
    assert cairn.repair(directory).metadata == "rebuilt"
    three.run(load_ranks, directory)
    assert cairn.latest(directory) == os.fspath(directory)


def test_files_of_two_saves_are_never_mixed(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    save(first, 1)
    save(second, 2)
    old = save_id_in(first)
    (second / "__1_0.distcp").write_bytes((first / "__0_0.distcp").read_bytes())
    (second / ".metadata").unlink()
    before = content_of(second)
    report = cairn.repair(second, partial=True)
    assert report.metadata == "unusable"
    assert {found.save_id for found in report.saves} > {old}
    assert "save=" in str(report.problems[0])
    assert content_of(second) == before
    assert cairn.repair(second, save=old).save_id == old
    assert_holds(second, 1)
    with pytest.raises(cairn.InvalidArgument):
        cairn.repair(second, save="nothing")


def test_a_copy_of_a_data_file_is_a_contradiction(checkpoint: Path) -> None:
    save(checkpoint)
    shutil.copy(checkpoint / "__0_0.distcp", checkpoint / "__0_1.distcp")
    (checkpoint / ".metadata").unlink()
    report = cairn.repair(checkpoint, partial=True)
    assert report.metadata == "unusable"
    assert any("'__0_0.distcp'" in str(problem) for problem in report.problems)
    (checkpoint / "__0_1.distcp").unlink()
    assert cairn.repair(checkpoint)


def test_a_repaired_checkpoint_keeps_its_place_in_the_run(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path / f"step-{step}", step)
        for file in (tmp_path / f"step-{step}").iterdir():
            os.utime(file, (step * 1000, step * 1000))
    (tmp_path / "step-2" / ".metadata").unlink()
    assert cairn.repair(tmp_path / "step-2")
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "step-3")
    assert [entry.step for entry in cairn.checkpoints(tmp_path)] == [3, 2, 1]
    cairn.pin(tmp_path / "step-2", "paper")
    (tmp_path / "step-2" / ".metadata").unlink()
    assert cairn.repair(tmp_path / "step-2")
    assert cairn.pin_note(tmp_path / "step-2") == "paper"
    report = cairn.prune(tmp_path, keep_last=1)
    assert [removed.step for removed in report.removed] == [1]


@pytest.mark.parametrize("process", [False, True])
def test_an_asynchronous_save_is_repaired(checkpoint: Path, process: bool) -> None:
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    kind = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
    cairn.async_save(state_of(1), checkpoint_id=checkpoint, no_dist=True, async_checkpointer_type=kind).result()
    cairn.async_save(state_of(2), checkpoint_id=checkpoint, no_dist=True, async_checkpointer_type=kind).result()
    (checkpoint / ".metadata").unlink()
    assert cairn.repair(checkpoint)
    assert_holds(checkpoint, 2)


def test_a_large_catalog_is_rebuilt(checkpoint: Path) -> None:
    state = {f"layer.{i}": torch.full((2,), float(i)) for i in range(5000)}
    cairn.save(state, checkpoint_id=checkpoint, no_dist=True)
    whole = (checkpoint / ".metadata").read_bytes()
    place = whole.index(b"CAIRNCAT") + 50
    (checkpoint / ".metadata").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert len(cairn.open(checkpoint)) == 5000  # the pickle is intact
    report = cairn.repair(checkpoint)
    assert (report.metadata, report.is_complete, report.damaged_name) == ("rebuilt", True, ".metadata.damaged")
    assert (checkpoint / ".metadata").read_bytes() == whole
    (checkpoint / ".metadata").unlink()
    assert cairn.repair(checkpoint).tensors == 5000
    assert b"CAIRNCAT" in (checkpoint / ".metadata").read_bytes()
    assert cairn.verify(checkpoint)
    assert_same(cairn.read(checkpoint), state)


def test_a_stock_checkpoint_has_no_trailers(checkpoint: Path) -> None:
    stock.save({"w": torch.ones(5)}, checkpoint)
    assert cairn.repair(checkpoint).metadata == "good"
    (checkpoint / ".metadata").unlink()
    report = cairn.repair(checkpoint)
    assert report.metadata == "unusable"
    assert any(isinstance(problem, cairn.Unsupported) for problem in report.problems)


def test_a_directory_without_a_checkpoint(tmp_path: Path) -> None:
    assert cairn.repair(tmp_path).metadata == "none"
    with pytest.raises(cairn.NotFound):
        cairn.repair(tmp_path / "missing")
    cairn.save(
        {"w": torch.ones(3)}, storage_writer=cairn.HuggingFaceStorageWriter(str(tmp_path / "model")), no_dist=True
    )
    before = content_of(tmp_path / "model")
    assert cairn.repair(tmp_path / "model").metadata == "none"
    assert content_of(tmp_path / "model") == before


def test_a_rank_that_saved_alone(checkpoint: Path) -> None:
    for rank in (0, 1):
        state = {"w": torch.full((4,), float(rank))}
        checkpointer = make_sync_checkpointer(rank_info=RankInfo(global_rank=rank, global_world_size=2))
        checkpointer.save(str(checkpoint), state)
        checkpointer.close()
    (checkpoint / "__1.metadata").unlink()
    report = cairn.repair(checkpoint)
    assert report.metadata == "unusable"
    assert "rank=" in str(report.problems[-1])
    assert cairn.repair(checkpoint, rank=1)
    assert (checkpoint / "__1.metadata").exists()
    assert not (checkpoint / ".metadata").exists()
    assert cairn.repair(checkpoint, rank=0).metadata == "good"


COMMIT = r"renameat .*/metadata -> \.metadata"


def leave_dead_save(directory: Path, killer: Killer, step: int) -> None:
    """Kills a save before its commit: its data files have their final names."""
    trial = directory.with_name("trial")
    shutil.copytree(directory, trial) if directory.exists() else trial.mkdir()
    calls = killer.run(functools.partial(save, trial, step), trial).calls
    shutil.rmtree(trial)
    directory.mkdir(exist_ok=True)
    number = next(i for i, call in enumerate(calls, 1) if re.fullmatch(COMMIT, call))
    assert killer.run(functools.partial(save, directory, step), directory, number).is_killed


def test_dead_saves_are_removed(checkpoint: Path, killer: Killer) -> None:
    save(checkpoint, 1)
    before = content_of(checkpoint)
    leave_dead_save(checkpoint, killer, 2)
    assert len(content_of(checkpoint)) > len(before)
    tried = cairn.repair(checkpoint, dry_run=True)
    report = cairn.repair(checkpoint)
    assert (report.metadata, len(report.cleaned)) == ("good", 1)
    assert tried.cleaned == report.cleaned
    assert content_of(checkpoint) == before

    leave_dead_save(checkpoint, killer, 2)
    (checkpoint / ".metadata").unlink()
    tried = cairn.repair(checkpoint, dry_run=True)
    report = cairn.repair(checkpoint)
    assert (report.metadata, len(report.saves), len(report.cleaned)) == ("rebuilt", 2, 1)
    assert {name for name, _ in tried.cleaned[0].files} == {name for name, _ in report.cleaned[0].files}
    assert set(content_of(checkpoint)) == set(before)
    assert_holds(checkpoint, 1)


def test_a_dead_save_is_a_checkpoint_only_if_named(tmp_path: Path, killer: Killer) -> None:
    checkpoint = tmp_path / "step-3"
    leave_dead_save(checkpoint, killer, 3)
    before = content_of(checkpoint)
    report = cairn.repair(checkpoint, partial=True)
    assert (report.metadata, report.cleaned) == ("unusable", ())
    assert content_of(checkpoint) == before
    (found,) = report.saves
    assert found.is_leftover
    assert cairn.repair(checkpoint, save=found.save_id)
    assert set(content_of(checkpoint)) == {".metadata", "__0_0.distcp"}
    assert_holds(checkpoint, 3)

    shutil.rmtree(checkpoint)
    leave_dead_save(checkpoint, killer, 3)
    (checkpoint / "__0_0.distcp").unlink()
    report = cairn.repair(checkpoint)
    assert (report.metadata, len(report.cleaned)) == ("none", 1)
    assert content_of(checkpoint) == {}


def test_a_save_under_way_refuses_the_repair(checkpoint: Path) -> None:
    save(checkpoint)
    (checkpoint / ".metadata").unlink()
    alive = _engine.SaveClaim(os.fsencode(checkpoint), overwrite=True, durable=True)
    with pytest.raises(cairn.Unavailable, match="under way"):
        cairn.repair(checkpoint)
    alive.withdraw()
    assert cairn.repair(checkpoint)


def test_an_interrupted_removal_is_not_undone(checkpoint: Path) -> None:
    save(checkpoint)
    (checkpoint / ".metadata").rename(checkpoint / ".cairn-removed")
    report = cairn.repair(checkpoint)
    assert report.metadata == "unusable"
    assert "removed" in str(report.problems[0])
    (checkpoint / ".cairn-removed").unlink()


def repair(directory: Path) -> None:
    cairn.repair(directory)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_kills_at_each_place_of_a_repair(tmp_path: Path, killer: Killer, broken: bool) -> None:
    directory, saved = tmp_path / "step-1", tmp_path / "saved"
    save(saved, 1, notes=NOTES)
    whole = (saved / ".metadata").read_bytes()
    (saved / ".metadata").unlink()
    if broken:
        (saved / ".metadata").write_bytes(whole[:100] + b"?" + whole[101:])
    shutil.copytree(saved, directory)
    states: set[str] = set()
    for run in killer.kill_before_each_call(functools.partial(repair, directory), directory):
        where = f"killed: {run.is_killed}, {run.calls[-2:]}"
        metadata = directory / ".metadata"
        if (
            metadata.exists() and metadata.read_bytes() != (saved / ".metadata").read_bytes()
            if broken
            else (metadata.exists())
        ):
            states.add("new")
            assert cairn.verify(directory), where
        else:
            states.add("old")
        if broken and run.has_made(r"renameat .*-> .metadata"):
            assert (directory / ".metadata.damaged").read_bytes() == (saved / ".metadata").read_bytes(), where
        assert cairn.repair(directory), where
        assert not [name for name in content_of(directory) if ".cairn-" in name], where
        assert [name for name in content_of(directory) if "damaged" in name] == [".metadata.damaged"] * broken, where
        assert_holds(directory, 1)
        shutil.rmtree(directory)
        shutil.copytree(saved, directory)
    assert states == {"old", "new"}
