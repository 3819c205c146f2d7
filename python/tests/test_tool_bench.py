"""`cairn bench`: rates of save and load beside the raw device; the directory is left as found."""

import signal
import subprocess
from pathlib import Path

from tool import UNREADABLE, USAGE, json_of, run, text_of, tool


def test_the_text_has_a_line_for_save_and_one_for_load(tmp_path: Path) -> None:
    lines = text_of("bench", tmp_path, "--bytes", "8MiB").splitlines()
    assert lines[0].startswith("state: 8.0 MiB in 1 tensor; medians of 3 rounds")
    assert [line.split()[0] for line in lines[2:]] == ["save", "load"]
    assert not any(tmp_path.iterdir())


def test_json_has_the_rates_of_each_round(tmp_path: Path) -> None:
    report = json_of("bench", tmp_path, "--bytes", "70MiB")
    assert (report["directory"], report["bytes"], report["tensors"]) == (str(tmp_path), 68 << 20, 2)
    assert len(report["rounds"]) == 3
    for rates in [*report["rounds"], report["median"]]:
        assert rates.keys() == {"raw_write", "save", "raw_read", "load"}
        assert min(rates.values()) > 0
    assert report["save_ratio"] > 0
    assert report["load_ratio"] > 0


def test_exit_codes(tmp_path: Path) -> None:
    assert run("bench", tmp_path / "missing").returncode == UNREADABLE
    assert run("bench", tmp_path, "--bytes", "many").returncode == USAGE
    assert run("bench", tmp_path, "--bytes", "1KiB").returncode == USAGE
    full = run("bench", tmp_path, "--bytes", "1000000TB")
    assert full.returncode == UNREADABLE
    assert b"bench fewer bytes" in full.stderr
    assert not any(tmp_path.iterdir())


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([tool(), "bench", str(tmp_path)], stdout=subprocess.DEVNULL) as bench:
        while bench.poll() is None and not any(tmp_path.iterdir()):
            pass
        bench.send_signal(signal.SIGINT)
        assert bench.wait(240) == -signal.SIGINT
    assert not any(tmp_path.iterdir())
