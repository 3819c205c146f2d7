"""Settings of saves: invalid settings are refused and change nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Gang

import cairn
from cairn._async.async_saver import DefaultSavers
from cairn._process import part
from cairn._settings import save_deadlines

WRONG: list[dict[str, Any]] = [
    {"generations": 0},
    {"generations": 1.5},
    {"generations": True},
    {"deadline_seconds": 0},
    {"deadline_seconds": float("nan")},
    {"grace_seconds": -1},
    {"nice": 99},
    {"nice": -1},
    {"io_priority": "high"},
    {"torn_snapshot_alarm": 1},
    {"fail_at_exit": "no"},
    {"heed_memory_limits": None},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    before = dict(part(DefaultSavers).settings)
    (name,) = wrong
    for set_up in (cairn.configure_async_saves, cairn.AsyncSaver):
        with pytest.raises(cairn.InvalidArgument, match=name):
            set_up(**wrong)
    assert part(DefaultSavers).settings == before


def test_a_setting_that_does_not_exist_is_refused_by_its_name() -> None:
    for set_up in (cairn.configure_async_saves, cairn.AsyncSaver):
        with pytest.raises(TypeError, match="copy_threads"):
            set_up(copy_threads=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("wrong", [{"deadline_seconds": 0}, {"sync_deadline_seconds": "1"}], ids=str)
def test_deadlines_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    before = save_deadlines()
    (name,) = wrong
    with pytest.raises(cairn.InvalidArgument, match=name):
        cairn.configure_saves(**wrong)
    assert save_deadlines() == before


@pytest.mark.parametrize("wrong", ["process", "thread", None, 1])
def test_a_type_that_is_none_of_torchs_is_refused(wrong: Any, checkpoint: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match="AsyncCheckpointerType") as caught:
        cairn.async_save({"w": torch.ones(1)}, checkpoint_id=checkpoint, async_checkpointer_type=wrong)
    assert caught.value.actual == repr(wrong)
    with pytest.raises(cairn.InvalidArgument, match="AsyncCheckpointerType"):
        cairn.prepare_async_saves({"w": torch.ones(1)}, wrong)
    assert not checkpoint.exists()


def save_with_a_wrong_type_on_one_rank(directory: Path) -> str:
    rank = torch.distributed.get_rank()
    kind: Any = "process" if rank == 1 else cairn.AsyncCheckpointerType.THREAD
    try:
        cairn.async_save({"w": torch.ones(1)}, checkpoint_id=directory, async_checkpointer_type=kind).result()  # type: ignore[union-attr]
    except cairn.Error as error:
        return str(error)
    return ""


def test_a_wrong_type_on_one_rank_fails_the_call_of_all(two: Gang, checkpoint: Path) -> None:
    for text in two.run(save_with_a_wrong_type_on_one_rank, checkpoint):
        assert "AsyncCheckpointerType" in text
