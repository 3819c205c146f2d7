"""`cairn verify`; Ctrl-C during a verification by the tool and from Python, on storage that hangs."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import hanging
import pytest
import torch
from tool import CHECK_FAILED, OK, UNREADABLE, json_of, run, tool

import cairn

VERIFIER = """
import signal, sys, cairn
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
try:
    cairn.verify(sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    cairn.save({"w": torch.ones(1000)}, checkpoint_id=tmp_path / "small", no_dist=True)
    return tmp_path / "small"


def test_every_damaged_record_of_a_torch_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    tensors = {f"w{i}": torch.full((2_000_000,), 1.0 + i) for i in range(4)}  # above a read of 4 MiB
    torch.save({**tensors, "tied": tensors["w2"], "other": torch.ones(3)}, file)
    told = json_of("verify", file)
    assert (told["ok"], told["bytes_checked"] > 4 * 8_000_000) == (True, True)
    content = bytearray(file.read_bytes())
    for key in ("w0", "w2", "w3"):
        content[content.index(tensors[key].numpy().tobytes()) + 5_000_001] ^= 1
    file.write_bytes(content)
    problems = cairn.verify(file).problems
    assert sorted((problem.key, problem.file) for problem in problems) == [
        (key, "model.pt") for key in ("w0", "w2", "w3")
    ]
    assert all("data/" in str(problem) and problem.offset for problem in problems)
    done = run("verify", file)
    assert done.returncode == CHECK_FAILED
    assert b"3 problems" in done.stdout


def test_verify_of_several_checkpoints_ends_with_a_summary(small: Path) -> None:
    for name in ("good", "damaged"):
        cairn.save({"w": torch.ones(1000)}, checkpoint_id=small.parent / name, no_dist=True)
    good, damaged, missing = small.parent / "good", small.parent / "damaged", small.parent / "missing"
    done = run("verify", small, good)
    assert (done.returncode, done.stderr) == (OK, b"")
    assert done.stdout.decode().splitlines()[-1] == "2 checkpoints: 2 ok"
    metadata = damaged / ".metadata"
    content = bytearray(metadata.read_bytes())
    content[5] ^= 4
    metadata.write_bytes(content)
    done = run("verify", small, damaged, good)
    assert done.returncode == CHECK_FAILED
    assert done.stdout.decode().splitlines()[-1] == "3 checkpoints: 2 ok, 1 with problems"
    assert b"did not write" not in done.stdout, "the damage says nothing about the writer"
    done = run("verify", damaged, missing, good)
    assert done.returncode == UNREADABLE
    assert done.stdout.decode().splitlines()[-1] == "3 checkpoints: 1 ok, 1 with problems, 1 not readable"
    assert str(missing) in done.stderr.decode()
    report = json.loads(run("verify", damaged, missing, good, "--json").stdout)
    assert report["ok"] is False
    assert [entry["ok"] for entry in report["checkpoints"]] == [False, False, True]
    assert [entry.get("has_commit_record") for entry in report["checkpoints"]] == [None, None, True]
    assert str(missing) in report["checkpoints"][1]["error"]


def hang(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """Returns an environment in which reads of data files hang, and the file that the first hanging read makes."""
    switch = tmp_path / "hang"
    switch.touch()
    library = hanging.library(tmp_path)
    return {**os.environ, "LD_PRELOAD": str(library), "HANG": f"pread:{switch}", "TERM": "xterm"}, Path(
        f"{switch}.reached"
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_ends_the_tool_though_the_storage_hangs(small: Path, tmp_path: Path) -> None:
    environment, reached = hang(tmp_path)
    # A background job ignores SIGINT. Children inherit the ignored signal, and env restores the default.
    command = ["env", "--default-signal=INT", tool(), "verify", str(small)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            wait_for(reached)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=240) == -signal.SIGINT
        finally:
            process.kill()


def test_ctrl_c_ends_a_verification_from_python_though_the_storage_hangs(small: Path, tmp_path: Path) -> None:
    environment, reached = hang(tmp_path)
    command = [sys.executable, "-c", VERIFIER, str(small)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            wait_for(reached)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=240)[0] == "interrupted\n"
        finally:
            process.kill()


def torch_loads(file: Path) -> bool:
    try:
        loaded = torch.load(file)
    except Exception:  # of many classes
        return False
    return bool(torch.equal(loaded["w"], torch.arange(6.0)))


def is_verified(file: Path) -> bool:
    try:
        return not cairn.verify(file).problems
    except (cairn.Error, UnicodeDecodeError):
        return False


def test_a_torch_file_that_torch_refuses_is_never_ok(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save({"w": torch.arange(6.0)}, file)
    whole = file.read_bytes()
    assert is_verified(file)
    begin = whole.index(b"PK\x01\x02")
    ends = whole.index(b"PK\x06\x06")
    entries = [at for at in range(begin, ends) if whole[at : at + 4] == b"PK\x01\x02"]
    one_entry = [*range(begin, begin + 46 + len("model/d")), *(entries[-2] + at for at in (8, 34, 38, 46))]
    refused = 0
    for offset in (*one_entry, *range(ends, len(whole))):  # of the directory: an entry, and all end records
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << bit
            file.write_bytes(damaged)
            if not torch_loads(file):
                refused += 1
                assert not is_verified(file), f"bit {bit} of byte {offset - begin} of the directory"
    assert refused > 500


@pytest.mark.parametrize(
    ("record", "content"),
    [
        ("version", None),
        ("version", b""),
        ("version", b"11\n"),
        ("version", b"3\n"),
        (".data/version", b"2"),
        ("byteorder", None),
        ("byteorder", b"middle"),
        (".storage_alignment", b"x"),
        (".storage_alignment", b"64"),
        (".format_version", None),
        (".data/serialization_id", None),
        ("data/0", None),
    ],
)
def test_a_torch_file_is_ok_if_torch_loads_its_small_records(
    record: str, content: bytes | None, tmp_path: Path
) -> None:
    torch.save({"w": torch.arange(6.0)}, tmp_path / "whole.pt")
    file = tmp_path / "model.pt"
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(file, "w") as changed:
        for name in {*whole.namelist(), f"whole/{record}"}:
            own = content if name == f"whole/{record}" else whole.read(name)
            if own is not None:
                changed.writestr(name, own)
    assert is_verified(file) == torch_loads(file)
