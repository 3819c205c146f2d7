"""The tool `cairn`, as a user runs the tool: output, exit codes, and reports of damage."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from tool import CHECK_FAILED, OK, UNREADABLE, USAGE, json_of, run, text_of, tool

import cairn
from cairn import _engine

WEIGHT = "model.layers.0.weight"


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    return {
        "model": {"layers": [{"weight": torch.randn(300, 100, generator=generator), "bias": torch.zeros(3)}]},
        "optimizer": {"moment": torch.ones(2, 2, dtype=torch.bfloat16), "betas": [0.9, 0.95]},
        "step": 17,
        "note": "first\ntry",
    }


def save_with_torch(directory: Path, what: dict[str, Any] | None = None) -> None:
    stock.save(what or state(), directory)


def save_with_cairn(directory: Path, what: dict[str, Any] | None = None) -> None:
    cairn.save(what or state(), checkpoint_id=directory, no_dist=True)


@pytest.fixture(params=[save_with_torch, save_with_cairn], ids=["torch", "cairn"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of `state()`, written by each library in turn."""
    request.param(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def data_file(checkpoint: Path) -> Path:
    (file,) = checkpoint.glob("*.distcp")
    return file


def flip_bit(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 0x10
    file.write_bytes(content)


def test_version_and_help() -> None:
    assert text_of("--version") == f"cairn {cairn.__version__}\n"
    for command in ("ls", "inspect", "verify"):
        assert command in text_of("--help")
        assert f"Usage: cairn {command}" in text_of(command, "--help")


def test_python_m_cairn_is_the_tool() -> None:
    done = subprocess.run([sys.executable, "-m", "cairn", "--version"], capture_output=True, check=True)
    assert done.stdout.decode() == text_of("--version")


@pytest.mark.parametrize("words", [[], ["frobnicate"], ["inspect"], ["ls", "a", "b"], ["verify", "--colour", "a"]])
def test_a_wrong_command_line_is_exit_code_2(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == USAGE
    assert done.stdout == b""
    assert done.stderr.startswith(b"cairn: ")


def test_ls_prints_a_line_per_key(checkpoint: Path) -> None:
    lines = {line.split()[-1]: line for line in text_of("ls", checkpoint).splitlines()}
    assert lines.keys() == set(stock.metadata_of(checkpoint).state_dict_metadata)
    assert lines[WEIGHT].split() == ["float32", "[300,", "100]", "117.2", "KiB", WEIGHT]
    assert lines["step"].split() == ["value", "step"]


def test_ls_of_a_folder_with_a_broken_checkpoint_shows_the_others(tmp_path: Path) -> None:
    save_with_cairn(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".metadata").write_bytes(b"no pickle")
    done = run("ls", tmp_path)
    assert done.returncode == UNREADABLE
    assert b"6 keys" in done.stdout
    assert b"unreadable" in done.stdout
    assert b".metadata" in done.stderr


def test_inspect_shows_the_tree(checkpoint: Path) -> None:
    text = text_of("inspect", checkpoint)
    lines = [line.split() for line in text.splitlines()]
    assert ["weight", "float32", "[300,", "100]", "117.2", "KiB", "1", "chunk", data_file(checkpoint).name] in lines
    assert ["betas", "=", "[0.9,", "0.95]"] in lines
    assert ["step", "=", "17"] in lines
    assert "note" in text
    assert "first\ntry" not in text


def test_inspect_json_agrees_with_torch(checkpoint: Path) -> None:
    report = json_of("inspect", checkpoint)
    metadata = stock.metadata_of(checkpoint)
    keys = {entry["key"]: entry for entry in report["keys"]}
    assert list(keys) == list(metadata.state_dict_metadata)
    assert {key: tuple(entry["path"]) for key, entry in keys.items()} == metadata.planner_data
    for index, info in metadata.storage_data.items():
        entry = keys[index.fqn]
        place = entry["chunks"][0] if entry["kind"] == "tensor" else entry
        assert (place["file"], place["offset"], place["length"]) == (info.relative_path, info.offset, info.length)
    weight = keys[WEIGHT]
    assert (weight["dtype"], weight["shape"], weight["bytes"]) == ("float32", [300, 100], 120_000)
    assert (weight["chunks"][0]["offsets"], weight["chunks"][0]["sizes"]) == ([0, 0], [300, 100])
    assert (keys["step"]["value"], keys["optimizer.betas"]["value"]) == ("17", "[0.9, 0.95]")
    file = data_file(checkpoint)
    assert report["files"] == [{"name": file.name, "bytes": file.stat().st_size}]


def test_only_a_checkpoint_of_cairn_has_a_save_id(tmp_path: Path) -> None:
    save_with_torch(tmp_path / "torch")
    save_with_cairn(tmp_path / "cairn")
    assert json_of("inspect", tmp_path / "torch")["save_id"] is None
    assert json_of("inspect", tmp_path / "cairn")["save_id"] == cairn.open(tmp_path / "cairn").save_id


NAMES = ["größe.权重/🪨", "line\nbreak", "\x1b[31mred", "back\\slash", 'quote"', "\u202eturned", "half \ud83e", ""]
NAMES += ["\x9b31m", "w\u200b", "w\u2066", "w\U000e0041"]


def test_no_name_reaches_the_terminal_raw_and_json_keeps_every_name(tmp_path: Path) -> None:
    save_with_torch(tmp_path, {name: torch.ones(2) for name in NAMES})
    assert [entry["key"] for entry in json_of("inspect", tmp_path)["keys"]] == NAMES
    for command in (["ls"], ["inspect"], ["inspect", "--json"]):
        text = text_of(*command, tmp_path)
        assert not any(character in text for character in "\x1b\u202e\ud83e\x9b\u200b\u2066\U000e0041")
    for command in ("ls", "inspect"):
        text = text_of(command, tmp_path)
        assert "w\\u200b" in text
        assert "größe" in text
        assert "line\\nbreak" in text
    assert len(text_of("ls", tmp_path).splitlines()) == len(NAMES)


class MakesDirectory:
    """Unpickling the object makes the directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_inspect_shows_an_object_without_running_code(tmp_path: Path) -> None:
    made = tmp_path / "made"
    stock.save({"path": Path("/etc/passwd"), "code": MakesDirectory(made), "step": 1}, tmp_path / "checkpoint")
    assert not made.exists()
    values = {entry["key"]: entry["value"] for entry in json_of("inspect", tmp_path / "checkpoint")["keys"]}
    assert "pathlib" in values["path"]
    assert "mkdir" in values["code"]
    assert values["step"] == "1"
    assert not made.exists()
    stock.load({"code": None}, tmp_path / "checkpoint")
    assert made.exists(), "a reader that runs code is not told apart"


def test_inspect_of_a_checkpoint_without_a_data_file_shows_the_tree(checkpoint: Path) -> None:
    data_file(checkpoint).unlink()
    done = run("inspect", checkpoint)
    assert done.returncode == UNREADABLE
    assert b"float32 [300, 100]" in done.stdout
    assert b"missing" in done.stdout
    assert b".distcp" in done.stderr


@pytest.mark.parametrize("way", ["above", "absolute", "link"])
def test_inspect_looks_at_no_file_outside_the_directory(way: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(123_456))
    directory = tmp_path / "checkpoint"
    save_with_torch(directory, {"w": torch.ones(2)})
    file = data_file(directory)
    content = file.read_bytes()
    file.write_bytes(content.ljust(123_456))
    assert b"123456" in run("inspect", "--json", directory).stdout
    assert b"120.6 KiB" in run("inspect", directory).stdout
    file.write_bytes(content)
    if way == "link":
        file.unlink()
        file.symlink_to(secret)
    else:
        metadata = pickle.loads((directory / ".metadata").read_bytes())
        for info in metadata.storage_data.values():
            info.relative_path = "../secret" if way == "above" else str(secret)
        (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    for command in (["inspect"], ["inspect", "--json"]):
        assert b"123456" not in (done := run(*command, directory)).stdout, done
        assert b"120.6 KiB" not in done.stdout


def test_verify_of_a_good_checkpoint(checkpoint: Path) -> None:
    assert text_of("verify", checkpoint).startswith(f"{checkpoint}: ok\n")
    report = json_of("verify", checkpoint)
    assert (report["ok"], report["problems"]) == (True, [])
    assert (report["tensors"], report["values"], report["files"]) == (3, 3, 1)
    assert report["bytes_checked"] > 120_000
    written_by_cairn = cairn.open(checkpoint).save_id is not None
    assert report["has_commit_record"] == written_by_cairn
    if written_by_cairn:
        assert (report["bytes_unchecked"], report["bytes_checked"]) == (0, data_file(checkpoint).stat().st_size)


def test_verify_finds_and_names_a_flipped_bit(checkpoint: Path) -> None:
    (chunk,) = next(e for e in json_of("inspect", checkpoint)["keys"] if e["key"] == WEIGHT)["chunks"]
    file = data_file(checkpoint)
    flip_bit(file, chunk["offset"] + chunk["length"] // 2)
    done = run("verify", checkpoint, "--json")
    assert (done.returncode, done.stderr) == (CHECK_FAILED, b"")
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["key"], problem["file"]) == (WEIGHT, file.name)
    assert chunk["offset"] <= problem["offset"] < chunk["offset"] + chunk["length"]
    assert problem["expected"] != problem["actual"]
    done = run("verify", checkpoint)
    assert done.returncode == CHECK_FAILED
    line = done.stdout.decode().splitlines()[0]
    assert line.startswith("problem: ")
    assert all(str(problem[field]) in line for field in ("key", "file", "offset", "expected", "actual"))


@pytest.mark.parametrize("damage", ["gone", "short", "empty"])
def test_verify_names_a_file_that_is_not_whole(checkpoint: Path, damage: str) -> None:
    file = data_file(checkpoint)
    if damage == "gone":
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size // 2 if damage == "short" else 0)
    done = run("verify", checkpoint, "--json")
    assert done.returncode == CHECK_FAILED
    problems = json.loads(done.stdout)["problems"]
    assert problems
    assert all(problem["file"] == file.name for problem in problems)


def test_verify_reports_damaged_metadata(checkpoint: Path) -> None:
    (checkpoint / ".metadata").write_bytes(b"\x80\x04nonsense")
    done = run("verify", checkpoint, "--json")
    assert done.returncode == CHECK_FAILED
    assert json.loads(done.stdout)["problems"][0]["file"] == ".metadata"


def test_verify_follows_links_only_with_the_option(checkpoint: Path) -> None:
    file = data_file(checkpoint)
    file.rename(checkpoint.parent / "elsewhere")
    file.symlink_to(checkpoint.parent / "elsewhere")
    assert run("verify", checkpoint).returncode == CHECK_FAILED
    assert run("verify", "--follow-links", checkpoint).returncode == OK


@pytest.mark.parametrize("command", ["ls", "inspect", "verify"])
def test_no_checkpoint_is_exit_code_3(command: str, tmp_path: Path) -> None:
    for directory in (tmp_path / "absent", tmp_path, Path("/dev/null")):
        done = run(command, directory)
        assert (done.returncode, done.stdout) == (UNREADABLE, b"")
        assert str(directory) in done.stderr.decode()


def test_output_that_cannot_be_written_is_an_error(checkpoint: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([tool(), "ls", str(checkpoint)], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == UNREADABLE
    assert b"stdout" in done.stderr


def test_the_tool_needs_no_python(checkpoint: Path) -> None:
    """The tool needs no Python, no torch and no environment."""
    assert Path(tool()).resolve().read_bytes()[:4] == b"\x7fELF"
    linked = subprocess.run(["ldd", tool()], capture_output=True, text=True, check=True).stdout
    assert "python" not in linked
    assert "torch" not in linked
    assert run("verify", checkpoint, environment={}).returncode == OK


def test_status_lists_the_saves_in_flight_in_a_folder_of_checkpoints(tmp_path: Path) -> None:
    assert text_of("status", tmp_path) == "no save is in flight\n"
    claim = _engine.SaveClaim(os.fsencode(tmp_path / "step-3"), overwrite=True, durable=True)
    text = text_of("status", tmp_path)
    assert "in flight" in text
    assert f"pid {os.getpid()}" in text
    (save,) = json_of("status", tmp_path)["saves"]
    assert save["directory"] == str(tmp_path / "step-3")
    assert not save["is_leftover"]
    assert [(writer["rank"], writer["state"]) for writer in save["writers"]] == [(None, "alive")]
    lease = tmp_path / "step-3" / f".cairn-{save['save_id']}" / "lease"
    whole = "".join(line for line in lease.read_text().splitlines(keepends=True) if not line.startswith("progress"))
    lease.write_text(f"{whole}progress syncing 7340032 7340032 sync 61250 syncing '__0_0.distcp'\n")
    assert "syncing, 7340032 of 7340032 bytes written, syncing '__0_0.distcp' for 61.2 s" in text_of("status", tmp_path)
    (save,) = json_of("status", tmp_path)["saves"]
    (writer,) = save["writers"]
    assert save["is_readable"]
    assert writer["is_readable"]
    assert writer["progress"] == {"phase": "syncing", "bytes_written": 7340032, "bytes_total": 7340032}
    assert (writer["pending_call"], writer["milliseconds_without_progress"]) == ("syncing '__0_0.distcp'", 61250)
    lease.write_text("garbage")
    assert "its lease can't be read" in text_of("status", tmp_path)
    ((writer,),) = [save["writers"] for save in json_of("status", tmp_path)["saves"]]
    assert (writer["is_readable"], writer["progress"]) == (False, None)
    lease.write_text(whole)
    claim.withdraw()
    assert json_of("status", tmp_path) == {"saves": []}


def test_status_lists_a_dead_save(tmp_path: Path) -> None:
    program = "import os, sys; from cairn import _engine; "
    program += "claim = _engine.SaveClaim(os.fsencode(sys.argv[1]), overwrite=True, durable=True); os._exit(0)"
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)
    assert f"died: 'cairn clean {tmp_path}' removes its files" in text_of("status", tmp_path)
    (save,) = json_of("status", tmp_path)["saves"]
    assert save["is_leftover"]


def test_status_of_nothing_is_unreadable(tmp_path: Path) -> None:
    done = run("status", tmp_path / "missing")
    assert (done.returncode, done.stdout) == (UNREADABLE, b"")
