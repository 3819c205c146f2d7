"""`cairn ls` and `cairn inspect`: the order and the columns of checkpoints, and the selection of keys."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from tool import CHECK_FAILED, OK, UNREADABLE, USAGE, json_of, run, text_of

import cairn


def save(directory: Path, **more: Any) -> None:
    cairn.save({"model": {"w": torch.ones(300, 100)}, "step": 3, **more}, checkpoint_id=directory, no_dist=True)


def stored_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())


def names_of(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints with names, times and jobs that disagree about the order; step-9 was saved last."""
    for name in ("step-10", "step-1", "step-100", "step-2", "step-9"):
        save(tmp_path / name)
    os.utime(tmp_path / "step-100" / ".metadata", (9_000_000_000, 9_000_000_000))
    (tmp_path / "step-11").mkdir()
    (tmp_path / "step-11" / "__0_0.distcp").write_bytes(b"half")
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_ls_sorts_steps_as_numbers_and_marks_the_one_that_latest_returns(folder: Path) -> None:
    text = text_of("ls", folder)
    assert names_of(text) == ["step-1", "step-2", "step-9", "step-10", "step-11", "step-100"]
    (newest,) = [line for line in text.splitlines() if line.endswith("newest")]
    assert newest.startswith("step-9 ")
    assert cairn.latest(folder) == os.fspath(folder / "step-9")


def test_ls_shows_time_size_and_contents(folder: Path) -> None:
    name, day, time, size, unit, *contents = text_of("ls", folder).splitlines()[0].split()
    metadata = folder / "step-1" / ".metadata"
    assert datetime.fromisoformat(f"{day}T{time}").timestamp() == int(metadata.stat().st_mtime)
    assert (name, f"{size} {unit}") == ("step-1", f"{stored_bytes(folder / 'step-1') / 1024:.1f} KiB")
    assert " ".join(contents) == "2 keys (1 tensor, 1 value), 117.2 KiB of tensors"
    assert "incomplete: no .metadata" in text_of("ls", folder).splitlines()[4]


def test_ls_json_says_the_same(folder: Path) -> None:
    listing = json_of("ls", folder)
    assert listing["directory"] == str(folder)
    entries = {entry.pop("name"): entry for entry in listing["checkpoints"]}
    assert list(entries) == ["step-1", "step-2", "step-9", "step-10", "step-11", "step-100"]
    assert [name for name, entry in entries.items() if entry["is_newest"]] == ["step-9"]
    metadata = folder / "step-9" / ".metadata"
    assert entries["step-9"] == {
        "directory": str(folder / "step-9"),
        "state": "complete",
        "is_newest": True,
        "modified_unix_ms": metadata.stat().st_mtime_ns // 10**6,
        "bytes": stored_bytes(folder / "step-9"),
        "keys": 2,
        "save_id": cairn.open(folder / "step-9").save_id,
        "notes": None,
        "reason": None,
        "pinned": False,
        "pin_note": None,
    }
    assert entries["step-100"]["modified_unix_ms"] == 9_000_000_000_000
    half = entries["step-11"]
    assert (half["state"], half["bytes"], half["keys"], half["save_id"]) == ("incomplete", 4, None, None)
    assert half["reason"] == "no .metadata"


def test_ls_names_a_data_file_that_is_missing_and_marks_the_newest_whole_checkpoint(folder: Path) -> None:
    (data_file,) = (folder / "step-9").glob("*.distcp")
    data_file.unlink()
    text = text_of("ls", folder)
    lines = dict(zip(names_of(text), text.splitlines(), strict=True))
    assert f"incomplete: no '{data_file.name}'" in lines["step-9"]
    assert lines["step-2"].endswith("newest")


def test_ls_marks_a_link_to_the_newest_too(folder: Path) -> None:
    (folder / "newest-link").symlink_to("step-9")
    (folder / "other-link").symlink_to("step-2")
    marked = [entry["name"] for entry in json_of("ls", folder)["checkpoints"] if entry["is_newest"]]
    assert marked == ["newest-link", "step-9"]


def test_ls_of_stock_checkpoints_marks_the_newest(tmp_path: Path) -> None:
    for step in (9, 10):
        stock.save({"w": torch.ones(3)}, tmp_path / f"step-{step}")
        os.utime(tmp_path / f"step-{step}" / ".metadata", (1000 + step, 1000 + step))
    assert names_of(text_of("ls", tmp_path)) == ["step-9", "step-10"]
    assert [entry["is_newest"] for entry in json_of("ls", tmp_path)["checkpoints"]] == [False, True]


def test_ls_json_of_a_broken_checkpoint_shows_the_others(folder: Path) -> None:
    (folder / "step-1" / ".metadata").write_bytes(b"no pickle")
    done = run("ls", folder, "--json")
    assert done.returncode == UNREADABLE
    states = [entry["state"] for entry in json.loads(done.stdout)["checkpoints"]]
    assert states == ["unreadable", "complete", "complete", "complete", "incomplete", "complete"]


def test_ls_never_marks_a_damaged_checkpoint_as_newest(folder: Path) -> None:
    metadata = folder / "step-9" / ".metadata"
    content = bytearray(metadata.read_bytes())
    content[5] ^= 4
    metadata.write_bytes(content)
    (data_file,) = (folder / "step-2").glob("*.distcp")
    os.truncate(data_file, data_file.stat().st_size - 1)
    done = run("ls", folder, "--json")
    assert done.returncode == UNREADABLE
    entries = {entry["name"]: entry for entry in json.loads(done.stdout)["checkpoints"]}
    assert entries["step-9"]["state"] == "unreadable"
    assert entries["step-2"]["state"] == "incomplete"
    assert data_file.name in entries["step-2"]["reason"]
    assert [name for name, entry in entries.items() if entry["is_newest"]] == ["step-100"]
    lines = {line.split()[0]: line for line in run("ls", folder).stdout.decode().splitlines()}
    size = data_file.stat().st_size
    assert lines["step-2"].endswith(f"incomplete: '{data_file.name}' has {size} bytes, expected {size + 1} bytes")
    assert lines["step-9"].endswith("unreadable")


def test_ls_lists_the_models_that_cairn_saved(tmp_path: Path) -> None:
    save(tmp_path / "step-1")
    writer = cairn.HuggingFaceStorageWriter(tmp_path / "export")
    cairn.save({"w": torch.ones(300)}, storage_writer=writer, no_dist=True)
    told = json_of("ls", tmp_path)["checkpoints"]
    assert [(entry["name"], entry["state"], entry["keys"]) for entry in told] == [
        ("export", "complete", 1),
        ("step-1", "complete", 2),
    ]
    assert [entry["is_newest"] for entry in told] == [False, True]


def test_ls_json_of_a_checkpoint_lists_its_keys(folder: Path) -> None:
    assert json_of("ls", folder / "step-1") == {
        "directory": str(folder / "step-1"),
        "notes": None,
        "keys": [
            {"key": "model.w", "kind": "tensor", "dtype": "float32", "shape": [300, 100], "bytes": 120_000},
            {"key": "step", "kind": "value"},
        ],
    }


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    layers = [{"weight": torch.ones(4), "bias": torch.ones(2)} for _ in range(3)]
    save(tmp_path / "c", net={"layers": layers, "head": torch.ones(1)})
    return tmp_path / "c"


def tree_of(text: str) -> list[str]:
    return text.split("\n\n", 1)[1].splitlines()


def test_inspect_depth_counts_the_hidden_keys(layers: Path) -> None:
    lines = {
        line.split()[0]: line.split(maxsplit=1)[1:] for line in tree_of(text_of("inspect", layers, "--depth", "1"))
    }
    assert list(lines) == ["model.w", "step", "net"]
    assert lines["net"] == ["7 keys below, 76 B of tensors"]
    lines = {line.split()[0]: line.split(maxsplit=1)[1:] for line in tree_of(text_of("inspect", layers, "--depth=3"))}
    assert lines["1"] == ["2 keys below, 24 B of tensors"]
    assert "weight" not in lines
    assert tree_of(text_of("inspect", layers, "--depth", "99")) == tree_of(text_of("inspect", layers))
    assert tree_of(text_of("inspect", layers, "--depth", "0")) == []


def test_inspect_depth_reads_no_hidden_value(layers: Path) -> None:
    shutil.copytree(layers, layers.parent / "damaged")
    (data_file,) = (layers.parent / "damaged").glob("*.distcp")
    data_file.unlink()
    assert run("inspect", layers.parent / "damaged").returncode == UNREADABLE
    assert run("inspect", layers.parent / "damaged", "--depth", "0").returncode == OK


@pytest.mark.parametrize(
    ("patterns", "keys"),
    [
        (["step"], ["step"]),
        (["net.layers.1"], ["net.layers.1.weight", "net.layers.1.bias"]),
        (["*.bias"], ["net.layers.0.bias", "net.layers.1.bias", "net.layers.2.bias"]),
        (["net.layers.[!0].w*"], ["net.layers.1.weight", "net.layers.2.weight"]),
        (["ste?", "net.head"], ["step", "net.head"]),
        (["*"], None),
    ],
)
def test_inspect_shows_the_keys_that_match(layers: Path, patterns: list[str], keys: list[str] | None) -> None:
    shown = [entry["key"] for entry in json_of("inspect", layers, *patterns)["keys"]]
    every = [entry["key"] for entry in json_of("inspect", layers)["keys"]]
    assert shown == (every if keys is None else keys)
    assert f"{len(shown)} of {len(every)} keys shown" in text_of("inspect", layers, *patterns)


def test_inspect_says_which_pattern_matches_no_key(layers: Path) -> None:
    done = run("inspect", layers, "step", "ste")
    assert done.returncode == CHECK_FAILED
    assert done.stderr == b"cairn: no key matches 'ste'; did you mean 'step'?\n"
    assert b"= 3" in done.stdout


@pytest.mark.parametrize("words", [["--depth", "-3"], ["--depth", "x"], ["--depth", "1", "--json"]])
def test_inspect_refuses_a_depth_that_makes_no_sense(layers: Path, words: list[str]) -> None:
    done = run("inspect", layers, *words)
    assert (done.returncode, done.stdout) == (USAGE, b"")
