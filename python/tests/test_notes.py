"""Notes of checkpoints: saved with the state, read back, replaced with the checkpoint, shown by the tool."""

import datetime
import functools
import json
import math
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import stock
import torch
import torch.distributed as dist
from kills import Killer
from tool import UNREADABLE, json_of, run, text_of

import cairn
import cairn.checkpointer
from cairn._async.async_saver import AsyncSaver

NOTES = {
    "metrics": {"loss": 0.1, "accuracy": 93},
    "git": "a1b2c3",
    "tags": ["été", None, True, 1e300, {}],
    "configuration": {"layers": 12, "name": 'quotes " and \\ and \u202e'},
}


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((40,), float(step)), "step": step}


def notes_of_step(step: int) -> dict[str, Any]:
    return {"metrics": {"step": step}, "text": "x" * step}


def save(step: int, directory: Path) -> None:
    cairn.save(state(step), checkpoint_id=directory, notes=notes_of_step(step), no_dist=True)


def save_by_thread(step: int, directory: Path) -> None:
    cairn.async_save(state(step), checkpoint_id=directory, notes=notes_of_step(step), no_dist=True).result()


def save_by_process(step: int, directory: Path) -> None:
    kind = cairn.AsyncCheckpointerType.PROCESS
    notes = notes_of_step(step)
    future = cairn.async_save(
        state(step), checkpoint_id=directory, notes=notes, no_dist=True, async_checkpointer_type=kind
    )
    notes["text"] = "changed after the call"
    future.result()


def save_by_saver(step: int, directory: Path) -> None:
    with AsyncSaver(process=False) as saver:
        saver.save(state(step), directory, notes=notes_of_step(step))


def save_by_a_stager_of_torch(step: int, directory: Path) -> None:
    class Stager(torch.distributed.checkpoint.staging.BlockingAsyncStager):
        def stage(self, state_dict: Any) -> Any:
            return super().stage(state_dict)

    stager = Stager()
    cairn.async_save(
        state(step), checkpoint_id=directory, notes=notes_of_step(step), no_dist=True, async_stager=stager
    ).result()  # type: ignore[union-attr]


SAVES = [save, save_by_thread, save_by_process, save_by_saver, save_by_a_stager_of_torch]


def test_notes_come_back(checkpoint: Path) -> None:
    cairn.save(state(1), checkpoint_id=checkpoint, notes=NOTES)
    assert cairn.open(checkpoint).notes == NOTES
    found = state(0)
    stock.load(found, checkpoint)
    assert torch.equal(found["w"], state(1)["w"])
    assert found["step"] == 1


def test_a_save_without_notes_has_none(checkpoint: Path) -> None:
    cairn.save(state(1), checkpoint_id=checkpoint, notes=NOTES)
    cairn.save(state(2), checkpoint_id=checkpoint)
    assert cairn.open(checkpoint).notes == {}
    cairn.save(state(3), checkpoint_id=checkpoint, notes={})
    assert cairn.open(checkpoint).notes == {}


def test_a_checkpoint_of_stock_torch_has_none(checkpoint: Path) -> None:
    stock.save(state(1), checkpoint)
    assert cairn.open(checkpoint).notes == {}


@pytest.mark.parametrize("save_step", SAVES, ids=lambda function: function.__name__)
def test_every_kind_of_save_stores_notes(save_step: Callable[[int, Path], None], checkpoint: Path) -> None:
    for step in (1, 2):
        save_step(step, checkpoint)
        assert cairn.open(checkpoint).notes == notes_of_step(step)
        assert cairn.verify(checkpoint)


def test_notes_are_plain_copies(checkpoint: Path) -> None:
    cairn.save(state(1), checkpoint_id=checkpoint, notes={"pair": (1, 2), "number": np.float64(0.5)})
    opened = cairn.open(checkpoint)
    assert opened.notes == {"pair": [1, 2], "number": 0.5}
    opened.notes["pair"] = 3
    assert opened.notes["pair"] == [1, 2]


LOOP: list[Any] = []
LOOP.append(LOOP)
REFUSED = {
    "a tensor": ({"metrics": {"loss": torch.tensor(0.1)}}, r"notes\['metrics'\]\['loss'\].*item\(\)"),
    "a NumPy number": ({"a": [0, np.float32(1)]}, r"notes\['a'\]\[1\].*numpy.float32"),
    "a NumPy integer": ({"a": np.int64(1)}, r"notes\['a'\].*item\(\)"),
    "an object": ({"a": {"b": datetime.date(2026, 1, 1)}}, r"notes\['a'\]\['b'\].*datetime\.date"),
    "a set": ({"a": {1}}, r"notes\['a'\].*builtins\.set"),
    "bytes": ({"a": b"x"}, r"notes\['a'\].*bytes"),
    "NaN": ({"a": math.nan}, r"notes\['a'\].*finite"),
    "an infinity": ({"metrics": {"loss": math.inf}}, r"notes\['metrics'\]\['loss'\].*finite"),
    "a key that is no text": ({"a": {1: 2}}, r"notes\['a'\].*texts as keys"),
    "a lone surrogate": ({"a": "\ud800"}, r"notes\['a'\].*surrogates"),
    "a loop": ({"a": LOOP}, r"notes\['a'\]\[0\].*itself"),
    "a list": ([1], "a dict"),
    "a text": ("{}", "a dict"),
    "a metric that is no number": ({"metrics": {"loss": "low"}}, r"metrics\.loss"),
    "a metric that is a truth value": ({"metrics": {"loss": True}}, r"metrics\.loss"),
    "a metric beyond a double": ({"metrics": {"loss": 10**400}}, r"metrics\.loss"),
    "metrics that are no dict": ({"metrics": 0.1}, "metrics"),
    "more than 64 KiB": ({"a": "x" * 65536}, "65536 bytes"),
    "deep nesting": ({"a": functools.reduce(lambda inner, _: [inner], range(100), [])}, "nested"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_notes_are_refused_with_their_place(name: str, checkpoint: Path) -> None:
    notes, message = REFUSED[name]
    cairn.save(state(1), checkpoint_id=checkpoint, notes=NOTES)
    for refused in (cairn.save, cairn.async_save):
        with pytest.raises(cairn.InvalidArgument, match=message):
            refused(state(2), checkpoint_id=checkpoint, notes=notes)  # type: ignore[operator]
    assert cairn.open(checkpoint).notes == NOTES


def test_a_model_has_no_place_for_notes(tmp_path: Path) -> None:
    writer = cairn.HuggingFaceStorageWriter(str(tmp_path / "model"))
    with pytest.raises(cairn.Unsupported, match="no place for notes"):
        cairn.save({"w": torch.ones(2)}, storage_writer=writer, notes=NOTES)
    cairn.save({"w": torch.ones(2)}, storage_writer=writer)
    assert cairn.open(tmp_path / "model").notes == {}


def test_notes_with_a_planner_of_the_callers_are_refused(checkpoint: Path) -> None:
    class Planner(cairn.DefaultSavePlanner):
        def create_local_plan(self) -> Any:
            return super().create_local_plan()

    with pytest.raises(cairn.InvalidArgument, match="torch's driver"):
        cairn.save(state(1), checkpoint_id=checkpoint, planner=Planner(), notes=NOTES)
    assert not (checkpoint / ".metadata").exists()


def save_on_ranks(rank: int, size: int, folder: Path) -> None:
    ranks.init(rank, size, folder)
    mine = {"metrics": {"rank": rank}}
    for directory, notes in (("all", mine), ("others", mine if rank else None)):
        cairn.save(state(1), checkpoint_id=folder / directory, notes=notes)
    cairn.async_save(state(1), checkpoint_id=folder / "async", notes=mine).result()
    cairn.save(state(rank), checkpoint_id=folder / "alone", notes=mine, use_collectives=False)
    wrong = {"metrics": torch.ones(1)} if rank else mine
    with pytest.raises(cairn.InvalidArgument, match=r"notes\['metrics'\]"):
        cairn.save(state(1), checkpoint_id=folder / "wrong", notes=wrong)
    dist.destroy_process_group()


def test_the_notes_of_rank_0_count(tmp_path: Path) -> None:
    ranks.start(save_on_ranks, 2, tmp_path)
    assert cairn.open(tmp_path / "all").notes == {"metrics": {"rank": 0}}
    assert cairn.open(tmp_path / "others").notes == {}
    assert cairn.open(tmp_path / "async").notes == {"metrics": {"rank": 0}}
    assert not (tmp_path / "wrong" / ".metadata").exists()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_checkpointer_stores_notes(is_async: bool, tmp_path: Path) -> None:
    checkpoints = cairn.checkpointer
    make = checkpoints.make_async_checkpointer if is_async else checkpoints.make_sync_checkpointer
    checkpointer = make(rank_info=checkpoints.RankInfo(global_rank=0, global_world_size=1))
    saved = checkpointer.save(str(tmp_path / "a"), state(1), notes=NOTES)
    if saved is not None:
        assert isinstance(saved[1], Future)
        saved[1].result()
    checkpointer.close()
    (metadata,) = (tmp_path / "a").glob("*.metadata")
    assert b'"git": "a1b2c3"' in metadata.read_bytes()


@pytest.mark.slow
def test_a_kill_leaves_the_notes_of_the_state(checkpoint: Path, killer: Killer) -> None:
    save(1, checkpoint)
    steps = set()
    for _ in killer.kill_before_each_call(functools.partial(save, 2, checkpoint), checkpoint):
        found = state(0)
        cairn.load(found, checkpoint_id=checkpoint, no_dist=True)
        assert cairn.open(checkpoint).notes == notes_of_step(found["step"])
        steps.add(found["step"])
        save(1, checkpoint)
    assert steps == {1, 2}


def test_a_copy_has_the_notes_where_there_is_a_place(checkpoint: Path, tmp_path: Path) -> None:
    cairn.save(state(1), checkpoint_id=checkpoint, notes=NOTES)
    cairn.convert(checkpoint, tmp_path / "copy", to="dcp")
    assert cairn.open(tmp_path / "copy").notes == NOTES
    (warning,) = cairn.convert(checkpoint, tmp_path / "copy.pt", to="torch").warnings
    assert "lacks the notes" in warning


def test_the_tool_shows_notes(tmp_path: Path) -> None:
    first, second = tmp_path / "step-1", tmp_path / "step-2"
    cairn.save(state(1), checkpoint_id=first, notes=NOTES)
    cairn.save(state(2), checkpoint_id=second)
    lines = text_of("ls", tmp_path).splitlines()
    assert lines[0].endswith("  loss 0.1, accuracy 93")
    assert "loss" not in lines[1]
    listed = json_of("ls", tmp_path)["checkpoints"]
    assert [entry["notes"] for entry in listed] == [NOTES, None]
    assert json_of("ls", first)["notes"] == json_of("inspect", first)["notes"] == NOTES
    assert json_of("ls", second)["notes"] is json_of("inspect", second)["notes"] is None
    text = text_of("inspect", first)
    assert "  metrics  loss 0.1, accuracy 93\n" in text
    (notes,) = (line for line in text.splitlines() if line.startswith("  notes    "))
    assert json.loads(notes.removeprefix("  notes    ")) == NOTES
    assert "\u202e" not in text
    assert "  notes  " not in text_of("inspect", second)


def test_the_tool_cuts_long_notes_in_text_only(checkpoint: Path) -> None:
    notes = {"metrics": {f"m{i}": i for i in range(6)}, "text": "é" * 5000}
    cairn.save(state(1), checkpoint_id=checkpoint, notes=notes)
    (line,) = (line for line in text_of("inspect", checkpoint).splitlines() if line.startswith("  notes    "))
    assert line.endswith("; --json has all)")
    assert len(line) < 600
    assert json_of("inspect", checkpoint)["notes"] == notes
    assert text_of("ls", checkpoint.parent).splitlines()[0].endswith("  m0 0, m1 1, m2 2, m3 3, ...  <- newest")


def test_the_tool_reports_damaged_notes(checkpoint: Path) -> None:
    large = {f"k{i}": torch.ones(1) for i in range(5000)}
    cairn.save(large, checkpoint_id=checkpoint, notes=NOTES)
    metadata = checkpoint / ".metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"a1b2c3", b"a1b2c4"))
    for words in (("inspect", checkpoint), ("ls", checkpoint, "--json"), ("ls", checkpoint.parent)):
        done = run(*words)
        assert done.returncode == UNREADABLE
        assert b"the notes are damaged" in done.stderr
    with pytest.raises(cairn.Corrupt, match="notes are damaged"):
        cairn.open(checkpoint).notes  # noqa: B018 - the access raises
