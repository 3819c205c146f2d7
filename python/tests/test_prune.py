"""`cairn.prune`, `remove_checkpoint` and pins: what is removed of a run, and what stays."""

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stock
import torch
from runs import DAY, content_of, names_of, pruned, reasons_of, root, save, saved, steps_in
from tool import text_of

import cairn
from cairn import _engine
from cairn.retention import RemovedCheckpoint

__all__ = ["root", "saved"]  # fixtures


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"keep_last": 1}, [10]),
        ({"keep_last": 3}, [8, 9, 10]),
        ({"keep_last": 100}, list(range(1, 11))),
        ({"keep_every": 4}, [4, 8, 10]),
        ({"keep_every": 1000}, [10]),
        ({"keep_every": timedelta(days=3)}, [1, 4, 7, 10]),
        ({"keep_every": timedelta(days=4)}, [1, 5, 9, 10]),
        ({"newer_than": timedelta(days=3.5)}, [7, 8, 9, 10]),
        ({"newer_than": 1.5 * DAY}, [9, 10]),
        ({"keep_last": 2, "keep_every": 5, "newer_than": timedelta(days=2.5)}, [5, 8, 9, 10]),
        ({"keep_last": 2, "keep_best": ("loss", "min", 3)}, [9, 10]),  # no checkpoint has the metric
        ({"keep_best": [("loss", "min"), ("accuracy", "max", 2)]}, [10]),
    ],
    ids=str,
)
def test_the_union_of_the_parts_of_the_rule_is_kept(rule: dict[str, Any], kept: list[int], root: Path) -> None:
    report = pruned(root, **rule)
    assert steps_in(root) == kept
    assert [entry.step for entry in report.removed] == [step for step in range(1, 11) if step not in kept]
    assert [entry.step for entry in report.kept] == kept[::-1]
    assert cairn.latest(root) == os.fspath(root / "step-10")
    assert not pruned(root, **rule).removed


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (("loss", "min"), [3, 6]),
        (("loss", "min", 2), [3, 4, 6]),
        (("loss", "max", 2), [1, 2, 6]),  # of equal values the newer
        (("accuracy", "max"), [5, 6]),  # only two checkpoints have the metric
        ([("loss", "min"), ("accuracy", "min")], [3, 4, 6]),
        (("missing", "min", 3), [6]),
    ],
    ids=str,
)
def test_the_best_by_their_metrics_are_kept(rule: Any, kept: list[int], tmp_path: Path) -> None:
    metrics: list[dict[str, float]] = [
        {"loss": 4.0},
        {"loss": 4.0},
        {"loss": 0.5},
        {"loss": 1.0, "accuracy": 0.25},
        {"loss": 2.0, "accuracy": 0.75},
        {},
    ]
    for step, measured in enumerate(metrics, 1):
        state = {"w": torch.full((1000,), float(step))}
        notes = {"metrics": measured}
        cairn.save(state, checkpoint_id=tmp_path / f"step-{step}", no_dist=True, notes=notes)
    report = pruned(tmp_path, keep_best=rule)
    assert steps_in(tmp_path) == kept
    assert not pruned(tmp_path, keep_best=rule).removed
    reasons = reasons_of(report)
    assert reasons.pop("step-6") == "newest"
    assert all(reason.startswith("best by ") for reason in reasons.values()), reasons


def test_the_report_names_checkpoints_files_and_reasons(root: Path) -> None:
    size = sum(file.stat().st_size for file in (root / "step-1").iterdir())
    save_id = cairn.open(root / "step-1").save_id
    report = cairn.prune(root, keep_last=2, keep_every=3)
    assert report.removed[0] == RemovedCheckpoint(
        os.fspath(root / "step-1"), 1, save_id, 2, size, was_interrupted=False, keeps_directory=False, warnings=()
    )
    assert reasons_of(report) == {
        "step-10": "newest",
        "step-9": "last 2, every 3 steps",
        "step-6": "every 3 steps",
        "step-3": "every 3 steps",
    }
    assert (report.problems, bool(report)) == ((), True)
    assert sorted(path.name for path in root.iterdir()) == ["step-10", "step-3", "step-6", "step-9"]


def test_the_last_are_those_of_latest_and_not_of_the_names(tmp_path: Path) -> None:
    for name in ("step-30", "step-10", "step-20"):  # resumed from an older step after step-30
        save(tmp_path / name)
    assert names_of(pruned(tmp_path, keep_last=2).removed) == ["step-30"]
    assert cairn.latest(tmp_path) == os.fspath(tmp_path / "step-20")


def test_checkpoints_of_stock_torch_and_copies_need_adopt(tmp_path: Path) -> None:
    state = {"w": torch.arange(1000.0)}
    for step in (1, 2):
        stock.save(state, tmp_path / f"step-{step}")
    save(tmp_path / "step-3")
    cairn.convert(tmp_path / "step-3", tmp_path / "copy-3", to="dcp")
    save(tmp_path / "step-4")
    kept = reasons_of(pruned(tmp_path, keep_last=1))
    assert kept == {"step-4": "newest", "copy-3": "a copy", "step-1": "of stock torch", "step-2": "of stock torch"}
    report = pruned(tmp_path, keep_last=1, adopt=True)
    assert sorted(names_of(report.removed)) == ["copy-3", "step-1", "step-2"]
    assert {entry.save_id is None for entry in report.removed if "step" in entry.directory} == {True}
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs the kernel's count of read bytes")
@pytest.mark.parametrize("rule", [{"keep_every": 1000}, {"keep_best": ("loss", "min")}], ids=str)
def test_without_adopt_the_pickles_of_stock_torch_are_not_read(rule: dict[str, Any], tmp_path: Path) -> None:
    stock.save({f"{'k' * 1000}.{number}": number for number in range(1000)}, tmp_path / "step-1")
    save(tmp_path / "step-2")

    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = bytes_read()
    report = cairn.prune(tmp_path, **rule)
    assert bytes_read() - before < (tmp_path / "step-1" / ".metadata").stat().st_size
    assert reasons_of(report) == {"step-2": "newest", "step-1": "of stock torch"}


def test_a_run_of_stock_torch_keeps_its_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        stock.save({"w": torch.full((10,), float(step))}, tmp_path / f"step-{step}")
        os.utime(tmp_path / f"step-{step}" / ".metadata", (1000 + step,) * 2)
    assert names_of(pruned(tmp_path, keep_last=1, adopt=True).removed) == ["step-1", "step-2"]
    loaded = {"w": torch.zeros(10)}
    stock.load(loaded, tmp_path / "step-3")
    assert (loaded["w"] == 3).all()


@pytest.mark.parametrize("damage", ["missing", "short", "trailer", "metadata"])
def test_a_damaged_newest_stays_and_the_older_counts(damage: str, root: Path) -> None:
    (data,) = (root / "step-10").glob("*.distcp")
    if damage == "missing":
        data.unlink()
    elif damage == "short":
        os.truncate(data, data.stat().st_size - 1)
    else:
        file = data if damage == "trailer" else root / "step-10" / ".metadata"
        content = bytearray(file.read_bytes())
        content[-30 if damage == "trailer" else 5] ^= 1
        file.write_bytes(content)
    report = pruned(root, keep_last=2)
    assert names_of(report.kept) == ["step-10", "step-9", "step-8"]
    assert reasons_of(report)["step-9"] == "newest"
    assert "can't be loaded" in reasons_of(report)["step-10"]
    assert (root / "step-10" / ".metadata").exists()
    assert len(report.removed) == 7


def test_without_a_good_checkpoint_nothing_is_removed(root: Path) -> None:
    for data in root.rglob("*.distcp"):
        os.truncate(data, 10)
    report = pruned(root, keep_last=1)
    assert (len(report.kept), report.removed) == (10, ())


def test_foreign_files_and_links_stay(root: Path, tmp_path: Path) -> None:
    (root / "step-1" / "notes.txt").write_text("foreign")
    (root / "step-2" / "__0_1.distcp").write_bytes(b"a name like that of a data file")
    save(tmp_path / "elsewhere" / "step-0", 0.0)
    (root / "step-0").symlink_to(tmp_path / "elsewhere" / "step-0")
    (root / "best").symlink_to("step-3")
    (root / "dangling").symlink_to("nowhere")
    (root / "logs").mkdir()
    (root / "config.json").write_text("{}")
    report = pruned(root, keep_last=1)
    assert names_of(report.removed) == [f"step-{step}" for step in range(1, 10)]
    assert [entry.keeps_directory for entry in report.removed] == [True, True] + [False] * 7
    assert (root / "step-1" / "notes.txt").read_text() == "foreign"
    assert [path.name for path in (root / "step-1").iterdir()] == ["notes.txt"]
    assert [path.name for path in (root / "step-2").iterdir()] == ["__0_1.distcp"]
    assert cairn.verify(root / "step-0")
    assert {"best", "dangling", "logs", "config.json", "step-0"} < {path.name for path in root.iterdir()}


def test_the_checkpoint_in_the_root_itself_stays(root: Path) -> None:
    before = content_of(root / "step-1")
    for name, content in before.items():
        (root / name).write_bytes(content)
    report = pruned(root, keep_last=1)
    assert names_of(report.removed) == [f"step-{step}" for step in range(1, 10)]
    assert {name: (root / name).read_bytes() for name in before} == before
    assert cairn.verify(root)


def test_checkpoints_of_a_rank_alone_stay(root: Path) -> None:
    state = {"w": torch.full((10,), 77.0)}
    for directory in (root / "alone-1", root / "step-1"):
        cairn.save(state, checkpoint_id=directory, use_collectives=False)
    assert names_of(pruned(root, keep_last=1).removed) == [f"step-{step}" for step in range(1, 10)]
    for directory in (root / "alone-1", root / "step-1"):
        assert not (directory / ".metadata").exists()
        loaded = {"w": torch.zeros(10)}
        cairn.load(loaded, checkpoint_id=directory, no_dist=True)
        assert (loaded["w"] == 77).all()
        with pytest.raises(cairn.NotFound):
            cairn.remove_checkpoint(directory)


def test_models_stay(root: Path) -> None:
    writer = cairn.HuggingFaceStorageWriter(os.fspath(root / "model-1"))
    cairn.save({"w": torch.ones(3)}, storage_writer=writer, no_dist=True)
    before = content_of(root / "model-1")
    (root / "export").mkdir()
    cairn.convert(root / "step-1", root / "export" / "model.safetensors", to="safetensors")
    assert not [name for name in names_of(pruned(root, keep_last=1, adopt=True).removed) if "step" not in name]
    assert content_of(root / "model-1") == before
    assert (root / "export" / "model.safetensors").exists()


def test_a_pin_protects_until_unpin(root: Path) -> None:
    assert cairn.pin_note(root / "step-1") is None
    cairn.pin(root / "step-1", "baseline of the paper\n\u00e4")
    cairn.pin(root / "step-1", "a second note")
    cairn.pin(root / "step-2")
    assert cairn.pin_note(root / "step-1") == "baseline of the paper\n\u00e4"
    assert cairn.pin_note(root / "step-2") == ""
    kept = reasons_of(pruned(root, keep_last=1))
    assert kept == {"step-10": "newest", "step-1": "pinned: baseline of the paper\n\u00e4", "step-2": "pinned"}
    with pytest.raises(cairn.InvalidArgument, match="baseline of the paper"):
        cairn.remove_checkpoint(root / "step-1")
    with pytest.raises(cairn.InvalidArgument):
        cairn.remove_checkpoint(root / "step-1", dry_run=True)
    assert steps_in(root) == [1, 2, 10]
    assert (cairn.unpin(root / "step-1"), cairn.unpin(root / "step-1")) == (True, False)
    assert names_of(pruned(root, keep_last=1).removed) == ["step-1"]
    save(root / "step-2", 2.0)  # the pin protects the next checkpoint too
    save(root / "step-11", 11.0)
    assert reasons_of(pruned(root, keep_last=1)) == {"step-11": "newest", "step-2": "pinned"}


def test_a_pin_needs_a_checkpoint_and_a_short_note(root: Path) -> None:
    (root / "logs").mkdir()
    for directory in (root / "logs", root, root / "missing"):
        with pytest.raises(cairn.NotFound):
            cairn.pin(directory)
    assert list((root / "logs").iterdir()) == []
    assert cairn.pin_note(root / "logs") is None
    assert not cairn.unpin(root / "logs")
    for call in (cairn.unpin, cairn.pin_note, cairn.remove_checkpoint):
        with pytest.raises(cairn.NotFound):
            call(root / "missing")
    with pytest.raises(cairn.InvalidArgument, match="too long"):
        cairn.pin(root / "step-1", "n" * (64 * 1024 + 1))
    with pytest.raises(cairn.InvalidArgument, match="must be text"):
        cairn.pin(root / "step-1", None)  # type: ignore[arg-type]
    assert cairn.pin_note(root / "step-1") is None


@pytest.mark.parametrize("form", ["path", "link in the root", "relative", "link to the root", "text"])
def test_protected_directories_stay(form: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    (root.parent / "link").symlink_to(root)
    (root / "current").symlink_to("step-3")
    protect: Any = {
        "path": root / "step-3",
        "link in the root": root / "current",
        "relative": "./step-3/",
        "link to the root": root.parent / "link" / "step-3",
        "text": f"file://{root}/step-3",
    }[form]
    for place in (root, Path(), root.parent / "link"):
        assert reasons_of(pruned(place, keep_last=9, protect=[protect, root / "step-77"])).get("step-1") is None
    report = cairn.prune(os.path.relpath(root) + "/./", keep_last=1, protect=[protect])
    assert reasons_of(report) == {"step-10": "newest", "step-3": "protected"}
    assert steps_in(root) == [3, 10]


def test_protect_takes_directories_in_the_root_only(root: Path) -> None:
    for directory in ("step-3", root, root.parent / "other" / "step-3"):
        with pytest.raises(cairn.InvalidArgument, match="protect"):
            cairn.prune(root, keep_last=1, protect=[directory])
    assert len(steps_in(root)) == 10


def test_an_interrupted_removal_is_finished(root: Path) -> None:
    (root / "step-4" / ".metadata").rename(root / "step-4" / ".cairn-removed")
    (root / "step-5" / ".metadata").rename(root / "step-5" / ".cairn-removed")
    next((root / "step-5").glob("*.distcp")).unlink()
    assert "its removal has begun" in text_of("ls", root)
    report = pruned(root, keep_last=8)
    assert [(entry.step, entry.files, entry.was_interrupted) for entry in report.removed] == [
        (4, 2, True),
        (5, 1, True),
    ]
    assert steps_in(root) == [1, 2, 3, 6, 7, 8, 9, 10]
    # Without a good checkpoint too. A save that came later into the directory keeps its files.
    (root / "step-10" / ".metadata").rename(root / "step-10" / ".cairn-removed")
    save(root / "step-10", 10.0)
    shutil.copy(root / "step-9" / ".metadata", root / "step-9" / ".cairn-removed")
    assert [entry.was_interrupted for entry in pruned(root, keep_last=8).removed] == [True, True]
    assert steps_in(root) == [1, 2, 3, 6, 7, 8, 9, 10]


def test_a_save_in_flight_keeps_the_checkpoint_of_its_directory(root: Path) -> None:
    alive = _engine.SaveClaim(os.fsencode(root / "step-2"), overwrite=True, durable=True)
    before = content_of(root / "step-2")
    assert cairn.prune(root, keep_last=1, dry_run=True)
    report = cairn.prune(root, keep_last=1)
    assert report, report.problems
    assert reasons_of(report) == {"step-10": "newest", "step-2": "a save into the directory is under way"}
    assert names_of(report.removed) == [f"step-{step}" for step in range(1, 10) if step != 2]
    assert {name: content for name, content in content_of(root / "step-2").items() if "lease" not in name} == {
        name: content for name, content in before.items() if "lease" not in name
    }
    with pytest.raises(cairn.Unavailable, match="under way"):
        cairn.remove_checkpoint(root / "step-2")
    alive.withdraw()
    assert names_of(pruned(root, keep_last=1).removed) == ["step-2"]


@pytest.mark.parametrize("call", ["save", "async_save"])
def test_saves_into_directories_that_prune_removes_succeed(call: str, tmp_path: Path) -> None:
    ended = threading.Event()
    failures: list[BaseException] = []

    def prune_again_and_again() -> None:
        try:
            while not ended.is_set():
                report = cairn.prune(tmp_path, keep_last=1)
                assert report, report.problems
        except BaseException as failure:
            failures.append(failure)

    pruner = threading.Thread(target=prune_again_and_again)
    pruner.start()
    try:
        for number in range(40):
            state = {"w": torch.full((10,), float(number))}
            saving = getattr(cairn, call)(state, checkpoint_id=tmp_path / f"step-{number % 2}", no_dist=True)
            if call == "async_save":
                saving.result()
    finally:
        ended.set()
        pruner.join()
    assert failures == []
    assert (cairn.read(tmp_path / "step-1")["w"] == 39).all()
    pruned(tmp_path, keep_last=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_saves_beside_prune_lose_nothing(tmp_path: Path) -> None:
    save(tmp_path / "step-0", 0.0)
    ended = threading.Event()
    newest = [0]
    failures: list[BaseException] = []

    def prune_again_and_again() -> None:
        try:
            while not ended.is_set():
                saved = newest[0]
                report = cairn.prune(tmp_path, keep_last=2)
                steps = [entry.step for entry in report.removed]
                # A directory may go while the other thread waits for its lock: that is no problem.
                assert report.problems == ()
                assert all(step is not None and step <= newest[0] - 1 for step in steps), (saved, steps)
        except BaseException as failure:
            failures.append(failure)

    pruners = [threading.Thread(target=prune_again_and_again) for _ in range(2)]
    for pruner in pruners:
        pruner.start()
    for step in range(1, 30):
        save(tmp_path / f"step-{step}", float(step))
        newest[0] = step
        assert cairn.latest(tmp_path) == os.fspath(tmp_path / f"step-{step}")
    ended.set()
    for pruner in pruners:
        pruner.join()
    assert failures == []
    cairn.prune(tmp_path, keep_last=2)
    assert steps_in(tmp_path) == [28, 29]


@pytest.mark.parametrize("keeps_directory", [False, True])
@pytest.mark.parametrize("module", ["cairn", "torch"])
def test_a_reader_of_a_removed_checkpoint_gets_its_values_or_an_error(
    module: str, keeps_directory: bool, tmp_path: Path
) -> None:
    first = tmp_path / "step-1"
    state = {"a": torch.full((1000,), 1.0), "b": torch.full((1000,), 2.0), "step": 1}
    if module == "cairn":
        cairn.save(state, checkpoint_id=first, no_dist=True)
    else:
        stock.save(state, first)
    if keeps_directory:
        (first / "notes.txt").touch()
    save(tmp_path / "step-2")
    opened, used = cairn.open(first), cairn.open(first)
    assert (used["a"] == 1).all()  # the data file is open
    assert names_of(cairn.prune(tmp_path, keep_last=1, adopt=True).removed) == ["step-1"]
    target = {"a": torch.zeros(1000)}
    with pytest.raises(cairn.NotFound):
        cairn.load(target, checkpoint_id=first)
    assert not target["a"].any()

    def check() -> None:
        with pytest.raises(cairn.Replaced):
            opened["b"]
        with pytest.raises(cairn.Replaced):
            opened["step"]
        try:
            values = used["b"]
        except cairn.Replaced:
            return
        assert (np.asarray(values) == 2).all()

    check()
    cairn.save({"a": torch.full((1000,), 8.0), "b": torch.full((1000,), 9.0)}, checkpoint_id=first, no_dist=True)
    # In a directory that stays, a data file of the next save may have the same name: its save id is another.
    check()


def test_remove_checkpoint_removes_even_the_only_one(tmp_path: Path) -> None:
    save(tmp_path / "step-7")
    save_id = cairn.open(tmp_path / "step-7").save_id
    before = content_of(tmp_path)
    tried = cairn.remove_checkpoint(tmp_path / "step-7", dry_run=True)
    assert content_of(tmp_path) == before
    assert cairn.remove_checkpoint(tmp_path / "step-7") == tried
    assert (tried.step, tried.save_id, tried.files) == (7, save_id, 2)
    assert tried.bytes == sum(map(len, before.values()))
    assert list(tmp_path.iterdir()) == []
    save(tmp_path / "step-8")
    (tmp_path / "step-8" / ".metadata").rename(tmp_path / "step-8" / ".cairn-removed")  # a removal was interrupted
    tried = cairn.remove_checkpoint(tmp_path / "step-8", dry_run=True)
    assert cairn.remove_checkpoint(tmp_path / "step-8") == tried
    assert (tried.step, tried.files, tried.was_interrupted) == (8, 2, True)
    assert list(tmp_path.iterdir()) == []
    stock.save({"w": torch.ones(10)}, tmp_path / "stock")
    (tmp_path / "stock" / "notes.txt").touch()
    assert cairn.remove_checkpoint(tmp_path / "stock").keeps_directory
    assert list(content_of(tmp_path)) == ["stock/notes.txt"]
    with pytest.raises(cairn.NotFound):
        cairn.remove_checkpoint(tmp_path / "stock")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({}, "the rule says nothing"),
        ({"keep_last": 0}, "keep_last must be"),
        ({"keep_last": -1}, "keep_last must be"),
        ({"keep_last": True}, "keep_last must be"),
        ({"keep_last": 2.0}, "keep_last must be"),
        ({"keep_last": 2**64}, "keep_last must be"),
        ({"keep_every": 0}, "keep_every must be"),
        ({"keep_every": "1000"}, "keep_every must be"),
        ({"keep_every": timedelta(0)}, "keep_every must be"),
        ({"newer_than": timedelta(days=-1)}, "newer_than must be"),
        ({"newer_than": "7d"}, "newer_than must be"),
        ({"newer_than": float("nan")}, "newer_than must be"),
        ({"newer_than": float("inf")}, "newer_than must be"),
        ({"keep_best": "loss"}, "keep_best must be"),
        ({"keep_best": ("loss",)}, "keep_best must be"),
        ({"keep_best": ("loss", "smallest")}, "keep_best must be"),
        ({"keep_best": ("", "min")}, "keep_best must be"),
        ({"keep_best": ("loss", "min", 0)}, "the number in keep_best must be"),
        ({"keep_best": [("loss", "min"), "accuracy"]}, "keep_best must be"),
        ({"keep_best": []}, "the rule says nothing"),
    ],
    ids=str,
)
def test_a_wrong_rule_is_refused(rule: dict[str, Any], said: str, root: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match=said):
        cairn.prune(root, **rule)
    assert len(steps_in(root)) == 10


def test_a_wrong_root_is_refused(root: Path) -> None:
    with pytest.raises(cairn.NotFound):
        cairn.prune(root / "missing", keep_last=1)
    with pytest.raises(cairn.InvalidArgument):
        cairn.prune(next((root / "step-1").glob("*.distcp")), keep_last=1)
    with pytest.raises(cairn.InvalidArgument):
        cairn.prune(None, keep_last=1)  # type: ignore[arg-type]
    with pytest.raises(cairn.Unsupported):
        cairn.prune("s3://bucket/run", keep_last=1)


@contextmanager
def another_user() -> Iterator[None]:
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_checkpoints_of_another_user_are_problems(root: Path) -> None:
    for directory in (root, *root.parents):  # up to pytest's base folder, which only root may enter
        if directory.stat().st_uid == 0 and directory.stat().st_mode & 0o7 == 0:
            directory.chmod(0o711)
    root.chmod(0o755)
    before = content_of(root)
    with another_user():
        report = cairn.prune(root, keep_last=8)
        with pytest.raises(cairn.Error):
            cairn.remove_checkpoint(root / "step-1")
        with pytest.raises(cairn.Error):
            cairn.pin(root / "step-1")
    assert (report.removed, bool(report)) == ((), False)
    assert [re.findall(r"step-\d+", str(problem))[0] for problem in report.problems] == ["step-1", "step-2"]
    assert content_of(root) == before
    (root / "step-5").chmod(0o700)
    with another_user():
        report = cairn.prune(root, keep_last=9)
    assert content_of(root) == before
    assert "Permission denied" in reasons_of(report)["step-5"]
