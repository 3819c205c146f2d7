"""`cairn doctor`: what a directory offers; the directory is left as found."""

import signal
import subprocess
from pathlib import Path

from tool import CHECK_FAILED, OK, UNREADABLE, USAGE, json_of, run, text_of, tool


def test_each_line_has_the_offer_and_its_use(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("untouched")
    lines = [line for line in text_of("doctor", tmp_path).splitlines() if "advice: " not in line]
    assert lines.pop().startswith(f"verdict: durable saves into '{tmp_path}' and loads from it work here")
    assert all(" -> " in line for line in lines)
    subjects = [line.split()[0] for line in lines]
    assert {"file_system", "write", "sync", "memory_copy", "io_uring", "memlock", "gpu"} <= set(subjects)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_json_has_numbers_with_units(tmp_path: Path) -> None:
    report = json_of("doctor", tmp_path)
    assert report["directory"] == str(tmp_path)
    findings = {finding["subject"]: finding for finding in report["findings"]}
    assert not any(finding["is_obstacle"] for finding in findings.values())
    assert findings["disk_write"]["unit"] == "bytes_per_second"
    assert findings["disk_write"]["number"] > 0
    assert findings["free_space"]["unit"] == "bytes"
    assert findings["write"]["number"] is findings["write"]["unit"] is None
    assert report["verdict"].startswith("durable saves into ")


def test_exit_codes(tmp_path: Path) -> None:
    assert run("doctor", tmp_path / "missing").returncode == UNREADABLE
    (tmp_path / "file").touch()
    assert run("doctor", tmp_path / "file").returncode == USAGE
    done = run("doctor", "/proc")  # a directory in which no user can make a folder
    assert done.returncode == CHECK_FAILED
    assert b"-> only loads work" in done.stdout
    assert done.stdout.splitlines()[-1] == b"verdict: durable saves into '/proc' fail here; repair first: write"


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(20):  # a fast disk may end the trial before the signal comes
        with subprocess.Popen([tool(), "doctor", str(tmp_path)], stdout=subprocess.DEVNULL) as doctor:
            while doctor.poll() is None and not any(tmp_path.iterdir()):
                pass
            doctor.send_signal(signal.SIGINT)
            code = doctor.wait(240)
        assert not any(tmp_path.iterdir())
        if code == -signal.SIGINT:
            return
        assert code == OK
    raise AssertionError("no run was interrupted")
