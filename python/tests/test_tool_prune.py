"""`cairn prune`, `rm`, `pin` and `unpin`, and the pins in `cairn ls`: texts, JSON and exit codes."""

import json
import os
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from runs import DAY, content_of, names_of, root, save, saved, steps_in
from tool import OK, UNREADABLE, USAGE, json_of, run, text_of

import cairn
from cairn import _engine

__all__ = ["root", "saved"]  # fixtures


def test_the_tool_prints_removed_and_kept_checkpoints_with_reasons(root: Path) -> None:
    (root / "step-1" / "notes.txt").touch()
    cairn.pin(root / "step-3", "paper\x1b")
    before = content_of(root)
    size = f"{sum(len(content) for name, content in before.items() if name.startswith('step-1/')) / 1024:.1f} KiB"
    words = ("prune", root, "--keep-last", "2", "--keep-every", "5")
    tried = text_of(*words, "--dry-run").splitlines()
    assert content_of(root) == before
    done = text_of(*words).splitlines()
    assert tried[0] == f"{root}/step-1: step 1, would remove 2 files, {size}; the directory stays, with other files"
    assert done[0] == f"{root}/step-1: step 1, removed 2 files, {size}; the directory stays, with other files"
    assert done[1] == f"{root}/step-2: step 2, removed 2 files, {size}"
    assert done[6:10] == [
        f"{root}/step-10: step 10, kept: newest",
        f"{root}/step-9: step 9, kept: last 2",
        f"{root}/step-5: step 5, kept: every 5 steps",
        f"{root}/step-3: step 3, kept: pinned: paper\\x1b",
    ]
    assert re.fullmatch(r"would remove 6 checkpoints, 12 files, [\d.]+ KiB; would keep 4", tried[-1])
    assert re.fullmatch(r"removed 6 checkpoints, 12 files, [\d.]+ KiB; kept 4", done[-1])
    assert len(done) == len(tried) == 11
    assert steps_in(root) == [3, 5, 9, 10]
    assert text_of(*words).splitlines()[-1] == "removed 0 checkpoints, 0 files, 0 B; kept 4"


def test_the_json_of_prune_is_the_report(root: Path) -> None:
    cairn.pin(root / "step-3", "paper")
    words = (
        "prune",
        root,
        "--keep-every-time",
        "3d",
        "--newer-than",
        "36h",
        "--keep-best",
        "val:loss:min:2",
        "--adopt",
    )
    report = cairn.prune(
        root, keep_every=timedelta(days=3), newer_than=1.5 * DAY, keep_best=("val:loss", "min", 2), dry_run=True
    )
    for dry_run in (True, False):
        told = json_of(*words, *["--dry-run"] * dry_run)
        assert told == {
            "dry_run": dry_run,
            "bytes": report.bytes,
            "removed": [{**entry._asdict(), "warnings": []} for entry in report.removed],
            "kept": [entry._asdict() for entry in report.kept],
            "problems": [],
        }
    assert steps_in(root) == [1, 3, 4, 7, 9, 10]


def test_rm_pin_and_unpin_of_several(root: Path) -> None:
    first, second, third = (root / f"step-{step}" for step in (1, 2, 3))
    assert text_of("pin", first, second, "--note", "a\tb") == f"{first}: pinned: a\\x09b\n{second}: pinned: a\\x09b\n"
    assert text_of("pin", first, "--note", "other") == f"{first}: already pinned: a\\x09b\n"
    assert json_of("pin", third) == {
        "checkpoints": [{"directory": str(third), "pinned": True, "was_pinned": False, "pin_note": ""}],
        "problems": [],
    }
    done = run("rm", first, root / "step-4", root / "missing")
    assert done.returncode == UNREADABLE
    assert done.stdout.decode().splitlines()[-1].startswith("removed 1 checkpoint, 2 files, ")
    assert [line.partition(":")[0] for line in done.stderr.decode().splitlines()] == ["cairn", "cairn"]
    assert b"pinned: a\\x09b" in done.stderr
    assert text_of("unpin", first, second) == f"{first}: no longer pinned\n{second}: no longer pinned\n"
    assert text_of("unpin", first) == f"{first}: was not pinned\n"
    assert json_of("unpin", third)["checkpoints"] == [
        {"directory": str(third), "pinned": False, "was_pinned": True, "pin_note": None}
    ]
    tried = json_of("rm", first, second, "--dry-run")
    told = json_of("rm", first, second)
    assert tried == {**told, "dry_run": True}
    assert [(entry["directory"], entry["step"], entry["files"]) for entry in told["removed"]] == [
        (str(first), 1, 2),
        (str(second), 2, 2),
    ]
    assert told["bytes"] == sum(entry["bytes"] for entry in told["removed"])
    assert steps_in(root) == [3, 5, 6, 7, 8, 9, 10]


def test_ls_marks_pinned_checkpoints(root: Path) -> None:
    cairn.pin(root / "step-1", "short\x1b")
    cairn.pin(root / "step-2")
    cairn.pin(root / "step-10", "\u00e4" * 40)
    lines = {line.split()[0]: line for line in text_of("ls", root).splitlines()}
    assert lines["step-1"].endswith(" of tensors  pinned: short\\x1b")
    assert lines["step-2"].endswith(" of tensors  pinned")
    assert lines["step-3"].endswith(" of tensors")
    assert lines["step-10"].endswith(f" of tensors  pinned: {30 * chr(0xE4)}...  <- newest")
    told = {entry["name"]: (entry["pinned"], entry["pin_note"]) for entry in json_of("ls", root)["checkpoints"]}
    assert told["step-1"] == (True, "short\x1b")
    assert told["step-2"] == (True, "")
    assert told["step-3"] == (False, None)
    assert told["step-10"] == (True, "\u00e4" * 40)
    shutil.rmtree(root / "step-3")
    save(root / "step-3", 3.0)
    (root / "step-3" / ".cairn-pinned").mkdir()  # a pin that can't be read protects too
    done = run("ls", root, "--json")
    assert done.returncode == UNREADABLE
    assert b"reading the pin of" in done.stderr
    told = {entry["name"]: (entry["pinned"], entry["pin_note"]) for entry in json.loads(done.stdout)["checkpoints"]}
    assert told["step-3"] == (True, "")
    assert "step-3" not in names_of(cairn.prune(root, keep_last=1).removed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prune", "ROOT"], "a rule is needed: --keep-last, "),
        (["prune", "--keep-last", "3"], "directory is required"),
        (["prune", "ROOT", "--keep-last", "0"], "--keep-last: Value 0 not in range 1 to"),
        (["prune", "ROOT", "--keep-last=-1"], "--keep-last: "),
        (["prune", "ROOT", "--keep-every", "0"], "--keep-every: Value 0 not in range 1 to"),
        (["prune", "ROOT", "--keep-every", "1d"], "--keep-every: "),
        (
            ["prune", "ROOT", "--keep-every-time", "1000"],
            "--keep-every-time takes a duration like 12h or 7d, not '1000'",
        ),
        (["prune", "ROOT", "--newer-than", "7 days"], "--newer-than takes a duration like 12h or 7d, not '7 days'"),
        (["prune", "ROOT", "--newer-than", "0d"], "--newer-than takes a duration"),
        (
            ["prune", "ROOT", "--keep-best", "loss"],
            "--keep-best takes METRIC:min, METRIC:max or METRIC:min:3, not 'loss'",
        ),
        (["prune", "ROOT", "--keep-best", ":min"], "--keep-best takes"),
        (["prune", "ROOT", "--keep-best", "loss:min:0"], "--keep-best takes"),
        (["prune", "ROOT", "--keep-best", "loss:least:3"], "--keep-best takes"),
        (["rm"], "directory is required"),
        (["pin"], "directory is required"),
        (["unpin"], "directory is required"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_line_has_exit_code_2(words: list[str], said: str, root: Path) -> None:
    done = run(*[root if word == "ROOT" else word for word in words])
    assert (done.returncode, done.stdout) == (USAGE, b"")
    assert done.stderr.decode().startswith(f"cairn: {said}")
    assert len(steps_in(root)) == 10


def test_the_exit_code_is_3_for_a_problem(root: Path) -> None:
    assert run("prune", root / "missing", "--keep-last", "1").returncode == UNREADABLE
    for command in ("rm", "pin", "unpin"):
        done = run(command, root / "missing")
        assert (done.returncode, b"missing" in done.stderr) == (UNREADABLE, True)
    alive = _engine.SaveClaim(os.fsencode(root / "step-2"), overwrite=True, durable=True)
    done = run("rm", root / "step-2", "--json")
    assert done.returncode == UNREADABLE
    (problem,) = json.loads(done.stdout)["problems"]
    assert "under way" in problem and str(root / "step-2") in problem
    assert done.stderr.decode() == f"cairn: {problem}\n"
    alive.withdraw()
    assert run("rm", root / "step-2").returncode == OK
