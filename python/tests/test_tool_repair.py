"""`cairn repair`: texts, JSON and exit codes. test_repair has the repairs themselves."""

import re
from pathlib import Path

import pytest
import torch
from tool import CHECK_FAILED, OK, UNREADABLE, USAGE, json_of, run, text_of

import cairn
from cairn.checkpointer import RankInfo, make_sync_checkpointer

STATE = {"w": torch.ones(4, 3), "step": 9}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "step-9"
    cairn.save(STATE, checkpoint_id=directory, no_dist=True)
    return directory


@pytest.fixture
def save_id(checkpoint: Path) -> str:
    found = cairn.open(checkpoint).save_id
    assert found is not None
    return found


def test_good_metadata_is_said_to_be_good(checkpoint: Path) -> None:
    assert text_of("repair", checkpoint) == f"{checkpoint}: the metadata is good, and agrees with the data files\n"


def test_the_rebuilt_checkpoint_is_named(checkpoint: Path, save_id: str) -> None:
    (checkpoint / ".metadata").write_bytes(b"broken")
    content = "2 keys (1 tensor and 1 value in 1 data file)"
    tried = text_of_broken("repair", checkpoint, "--dry-run")
    assert tried == f"{checkpoint}: would rebuild the metadata of save {save_id}: {content}\n"
    assert (checkpoint / ".metadata").read_bytes() == b"broken"
    assert text_of_broken("repair", checkpoint).splitlines() == [
        f"{checkpoint}: rebuilt the metadata of save {save_id}: {content}",
        "the broken file is kept as '.metadata.damaged'",
        f"next: 'cairn verify {checkpoint}' reads every byte",
    ]
    assert run("verify", checkpoint).returncode == OK


def text_of_broken(*words: str | Path) -> str:
    """stderr says why the old file is broken, and that its notes are lost."""
    done = run(*words)
    assert done.returncode == OK, done.stderr
    lines = done.stderr.decode().splitlines()
    assert lines, "no warning"
    assert all(line.startswith("cairn: warning: ") for line in lines)
    return done.stdout.decode()


def test_lost_files_are_named_and_fail(checkpoint: Path) -> None:
    (checkpoint / "__0_0.distcp").unlink()
    done = run("repair", checkpoint)
    assert done.returncode == CHECK_FAILED
    assert done.stdout.decode().splitlines() == [
        f"{checkpoint}: the metadata is intact, and was not changed; data files are lost",
        "missing: 1 data file",
        "missing: __0_0.distcp",
        "lost: w [4, 3]: 12 elements, in [0, 4) x [0, 3)",
        "lost: step, a value",
    ]
    assert b"__0_0.distcp" in done.stderr
    (checkpoint / ".metadata").unlink()
    done = run("repair", checkpoint)
    assert (done.returncode, done.stderr) == (UNREADABLE, b"")
    assert done.stdout.decode() == f"{checkpoint}: no checkpoint: nothing to rebuild\n"


def test_the_json_is_the_report(checkpoint: Path, save_id: str) -> None:
    (checkpoint / ".metadata").unlink()
    for words, is_dry in (("--dry-run",), True), ((), False):
        found = json_of("repair", checkpoint, *words)
        assert (found["metadata"], found["is_complete"], found["save_id"]) == ("rebuilt", True, save_id)
        assert (found["dry_run"], found["directory"]) == (is_dry, str(checkpoint))
        assert found["saves"] == [{"save_id": save_id, "files": 1, "expected_files": 1, "is_leftover": False}]
        assert (found["files"], found["tensors"], found["values"], found["missing"]) == (1, 1, 1, [])
    assert json_of("repair", checkpoint)["metadata"] == "good"


def test_the_save_of_several_is_chosen(checkpoint: Path, save_id: str, tmp_path: Path) -> None:
    cairn.save(STATE, checkpoint_id=tmp_path / "other", no_dist=True)
    (checkpoint / "__1_0.distcp").write_bytes((tmp_path / "other" / "__0_0.distcp").read_bytes())
    (checkpoint / ".metadata").unlink()
    done = run("repair", checkpoint, "--partial")
    assert done.returncode == CHECK_FAILED
    assert done.stdout.decode() == f"{checkpoint}: the metadata is lost or broken, and was not rebuilt\n"
    assert save_id in done.stderr.decode()
    assert json_of("repair", checkpoint, "--save", save_id)["save_id"] == save_id


def test_the_metadata_of_a_rank(tmp_path: Path) -> None:
    directory = tmp_path / "alone"
    for rank in (0, 1):
        state = {f"of_{rank}": torch.ones(2)}
        make_sync_checkpointer(rank_info=RankInfo(global_rank=rank, global_world_size=2)).save(str(directory), state)
    (directory / "__1.metadata").unlink()
    done = run("repair", directory, "--rank", "1")
    assert done.returncode == OK, done.stderr
    assert re.search(rb"rebuilt the metadata of save [0-9a-f]+: 1 key ", done.stdout)


def test_a_wrong_save_is_wrong_usage(checkpoint: Path) -> None:
    done = run("repair", checkpoint, "--save", "nothing")
    assert (done.returncode, done.stdout) == (USAGE, b"")
    done = run("repair", checkpoint / "missing")
    assert (done.returncode, done.stdout) == (UNREADABLE, b"")
    assert b"missing" in done.stderr
