"""Bars of the calls that take long: in Python and in the tool.

A call hangs until its bar was drawn: no test depends on the time that a call takes.
"""

import fcntl
import functools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hanging
import programs
import pytest
import ranks
import torch
import warm_python
from tool import tool

import cairn
from cairn import _progress_bars, progress
from cairn._progress_bars import Amounts

SECONDS = 240  # the longest wait for an event
PROGRAMS = Path(__file__).with_name("progress_programs.py")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanging.library(tmp_path_factory.mktemp("library"))


class Screen:
    """A terminal, with all that was written to it."""

    def __init__(self) -> None:
        self._own, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # tqdm looks at the rows
        self.text = ""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._own, 4096):
                self.text += data.decode(errors="replace")
        except OSError:  # the terminal is closed everywhere
            pass
        os.close(self._own)

    def close(self) -> None:
        os.close(self.terminal)
        self._reading.join(SECONDS)


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    if made._reading.is_alive():
        made.close()


def start(command: list[str], library: Path, stderr: int, **environment: str) -> "subprocess.Popen[str]":
    popen = functools.partial(warm_python.Popen, repeats=True) if command[0] == sys.executable else subprocess.Popen
    return popen(
        command,
        env={**os.environ, "TERM": "xterm", "LD_PRELOAD": str(library), **environment},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def run(name: str, folder: Path, library: Path, *arguments: str, screen: Screen | None = None) -> str:
    """Runs a program of progress_programs.py, and returns what it has written to stderr: a pipe, or `screen`."""
    command = [sys.executable, str(PROGRAMS), name, str(folder), *arguments]
    process = start(command, library, subprocess.PIPE if screen is None else screen.terminal)
    output, errors = process.communicate(timeout=SECONDS)
    if screen is not None:
        screen.close()
        errors = screen.text
    assert process.returncode == 0, output + errors
    return errors


def test_each_call_has_lines_with_its_bytes(tmp_path: Path, library: Path) -> None:
    lines = run("calls", tmp_path, library).splitlines()
    for title, unit in (
        ("saving 'saved'", "MiB"),
        ("loading 'saved'", "MiB"),
        ("saving 'by-thread'", "MiB"),
        ("saving 'by-process'", "MiB"),
        ("loading 'by-process'", "MiB"),
        ("verifying 'by-thread'", "MiB"),
        ("converting 'copy'", "MiB"),
        ("removing 'copy'", "files"),
    ):
        own = [line for line in lines if line.startswith(f"cairn: {title}: ")]
        assert len(own) >= 3, (title, lines)
        assert "%, " in own[0], own
        assert " in " in own[-1], own
        assert unit in own[-1], own
    assert all(line.startswith("cairn: ") for line in lines), lines


def test_tqdm_draws_on_a_terminal(tmp_path: Path, library: Path, screen: Screen) -> None:
    text = run("load", tmp_path, library, screen=screen)
    assert "\rloading 'saved':   0%|" in text
    assert "loading 'saved': 100%|" in text
    assert text.endswith("\r\n")  # the bar stays


def test_rich_draws_without_tqdm(tmp_path: Path, library: Path, screen: Screen) -> None:
    text = run("rich", tmp_path, library, screen=screen)
    assert "loading 'saved'" in text
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("100%")  # the cursor is back


def test_lines_without_tqdm_and_rich(tmp_path: Path, library: Path, screen: Screen) -> None:
    lines = run("neither", tmp_path, library, screen=screen).splitlines()
    assert len(lines) >= 3, lines
    assert all(line.startswith("cairn: loading 'saved': ") for line in lines), lines


@pytest.mark.parametrize("style", ["tqdm", "rich", "lines"])
def test_the_caller_chooses_the_style(tmp_path: Path, library: Path, style: str) -> None:
    text = run("load", tmp_path, library, style)
    assert ("100%" in text) == (style != "lines")


@pytest.mark.parametrize("name", ["short", "closed", "fork", "nested", "no_thread", "blocked", "after_the_block"])
def test_a_program_with_bars_goes_on(tmp_path: Path, library: Path, name: str) -> None:
    text = run(name, tmp_path, library)
    assert all(line.startswith("cairn: saving '") for line in text.splitlines()), text
    assert bool(text) == (name in ("fork", "after_the_block"))


@pytest.mark.parametrize("style", ["tqdm", "rich"])
def test_a_failure_ends_the_bar(tmp_path: Path, library: Path, style: str, screen: Screen) -> None:
    text = run("failure", tmp_path, library, style, screen=screen)
    assert "failed" in text
    assert "Traceback" not in text


def test_two_bars_of_tqdm(tmp_path: Path, library: Path, screen: Screen) -> None:
    text = run("two", tmp_path, library, "tqdm", screen=screen)
    row = r"(?:\r *|\x1b\[A)"  # the start of a row, or the row above after the clearing of a lower one
    assert re.search(row + r"loading 'good\\x1b\[2J': 100%[^\r\n]*\r\n", text), text
    assert re.search(row + r"loading 'bad\\n': [^\r\n]*failed[^\r\n]*\r\n", text), text
    assert "\x1b[2J" not in text


def test_two_bars_of_rich(tmp_path: Path, library: Path, screen: Screen) -> None:
    text = run("two", tmp_path, library, "rich", screen=screen)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n")
    last = plain.strip().split("\r")[-1].splitlines()
    assert len(last) == 2, plain
    assert {line.partition(" \u2501")[0].strip() for line in last} == {
        "loading 'good\\x1b[2J'",
        "loading 'bad\\n', failed",
    }
    assert "\x1b[2J" not in text


def test_lines_of_odd_names(tmp_path: Path, library: Path) -> None:
    lines = run("two", tmp_path, library, "lines").splitlines()
    assert any(line.startswith("cairn: loading 'bad\\n': failed, ") for line in lines), lines
    assert all(line.startswith(("cairn: loading 'good\\x1b[2J': ", "cairn: loading 'bad\\n': ")) for line in lines), (
        lines
    )


def test_a_bar_below_a_bar_of_the_program(tmp_path: Path, library: Path, screen: Screen) -> None:
    text = run("outer", tmp_path, library, screen=screen)
    assert "saving 'saved'" in text
    assert text.rstrip().rpartition("\r")[2].startswith("epochs:"), text


def test_a_managed_run_has_bars(tmp_path: Path, library: Path) -> None:
    assert "cairn: saving 'step-1': " in run("managed", tmp_path, library)


def wait_for(happens: Callable[[], object], processes: "list[subprocess.Popen[str]]") -> None:
    until = time.monotonic() + SECONDS
    while not happens():
        assert time.monotonic() < until
        assert all(process.poll() is None for process in processes), [p.communicate() for p in processes]
        time.sleep(0.02)


def test_rank_0_alone_has_bars(tmp_path: Path, library: Path) -> None:
    block = tmp_path / "hang"
    block.touch()
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(ranks.free_port())}
    command = [sys.executable, str(PROGRAMS), "rank", str(tmp_path)]
    processes = [
        start(command, library, subprocess.PIPE, RANK=str(rank), GLOO_SOCKET_IFNAME="lo", **together)
        for rank in range(2)
    ]
    try:
        wait_for(lambda: all((tmp_path / f"seen-{rank}").exists() for rank in range(2)), processes)
        block.unlink()
        outputs = [process.communicate(timeout=SECONDS) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
    finally:
        for process in processes:
            process.kill()
    assert "cairn: saving 'saved': " in outputs[0][1]
    assert "cairn: saving" not in outputs[1][1]


def test_a_launcher_gives_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_shown(of_call: int) -> bool:
        return progress._is_shown(progress._Work(1, "saving", "bytes", b"run", of_call, None, 1.0, 0, 0))

    monkeypatch.delenv("RANK", raising=False)
    assert (is_shown(0), is_shown(1)) == (True, False)
    monkeypatch.setenv("RANK", "1")  # a call of this process alone
    assert not is_shown(0)


def test_nothing_is_imported_before_a_bar() -> None:
    program = """
    import sys
    import cairn
    with cairn.show_progress() as display:
        pass
    display._thread.join()
    print([name for name in ("tqdm", "rich", "torch") if name in sys.modules])
    """
    assert programs.run(program) == "[]"


def test_a_style_whose_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(cairn.InvalidArgument, match="the package rich is not installed"):
        cairn.show_progress("rich")


def test_an_unknown_style() -> None:
    with pytest.raises(cairn.InvalidArgument, match="tqdm, rich, lines"):
        cairn.show_progress("bar")  # type: ignore[arg-type]


def test_the_texts_of_lines() -> None:
    gib = 1 << 30
    text = _progress_bars._text_of
    assert text(Amounts(gib, 3 * gib, "bytes", 4.0)) == "33%, 1.0 GiB of 3.0 GiB, 256.0 MiB/s, 0:08 left"
    assert text(Amounts(0, gib, "bytes", 4.0)) == "0%, 0 B of 1.0 GiB"
    assert text(Amounts(12, 0, "files", 3725.0)) == "12 files, 1:02:05"
    assert (
        text(Amounts(3, 9, "directories", 2.0)) == "33%, 3 directories of 9 directories, 1.5 directories/s, 0:04 left"
    )


# The tool. A call begins to hang at once, and the test waits until the tool has drawn, two seconds later.


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for name in ("saved", "other"):
        cairn.save({"w": torch.ones(1 << 20)}, checkpoint_id=tmp_path / name, no_dist=True)
    return tmp_path / "saved"


def run_tool(words: list[str | Path], call: str, library: Path, screen: Screen, shown: str) -> None:
    """Runs the tool with a hanging `call` until `shown` is on the screen, and lets the call return then."""
    block = Path(str(words[1])).parent / "hang"
    block.touch()
    process = start([tool(), *map(str, words)], library, screen.terminal, HANG=f"{call}:{block}")
    wait_for(lambda: shown in screen.text, [process])
    block.unlink()
    output, _ = process.communicate(timeout=SECONDS)
    screen.close()
    assert process.returncode == 0, output + screen.text


@pytest.mark.parametrize(
    ("words", "call", "action"),
    [
        (["verify", "saved"], "large", "verifying"),
        (["diff", "saved", "other"], "large", "comparing"),
        (["cat", "saved", "w"], "large", "reading"),
        (["cat", "saved", "w", "--npy", "w.npy"], "large", "exporting"),
        (["convert", "saved", "saved.pt"], "large", "converting"),
        (["rm", "saved"], "unlinkat", "removing"),
        (["bench", "saved", "--bytes", "8MiB"], "pwrite", "measuring"),
    ],
)
def test_the_tool_draws_a_line(
    saved: Path, library: Path, screen: Screen, words: list[str], call: str, action: str
) -> None:
    names = ("saved", "other", "w.npy", "saved.pt")
    run_tool([saved.parent / word if word in names else word for word in words], call, library, screen, f"\r{action} [")
    assert screen.text.endswith("\r\x1b[K")  # the line is gone


def test_the_tool_prints_reports_above_the_line(saved: Path, library: Path, screen: Screen) -> None:
    block = saved.parent / "hang"
    block.touch()
    command = [tool(), "verify", str(saved), str(saved.parent / "other")]
    process = start(command, library, screen.terminal, HANG=f"large:{block}")
    wait_for(lambda: "\rverifying [" in screen.text, [process])
    block.unlink()
    output, _ = process.communicate(timeout=SECONDS)
    screen.close()
    assert output.count(": ok\n") == 2
    assert screen.text.endswith("\r\x1b[K")


def test_the_tool_removes_the_line_after_a_signal(saved: Path, library: Path, screen: Screen) -> None:
    block = saved.parent / "hang"
    block.touch()
    process = start([tool(), "verify", str(saved)], library, screen.terminal, HANG=f"large:{block}")
    wait_for(lambda: "\rverifying [" in screen.text, [process])
    process.terminate()
    assert process.wait(SECONDS) == -15
    screen.close()
    assert screen.text.endswith("\r\x1b[K")


@pytest.mark.parametrize(("words", "terminal"), [(["--quiet"], "xterm"), ([], "dumb")])
def test_the_tool_draws_no_line(saved: Path, library: Path, screen: Screen, words: list[str], terminal: str) -> None:
    block = saved.parent / "hang"
    block.touch()
    command = [tool(), "verify", str(saved)]
    without = start([*command, *words], library, screen.terminal, HANG=f"large:{block}", TERM=terminal)
    second = Screen()
    drawing = start(command, library, second.terminal, HANG=f"large:{block}")
    wait_for(lambda: "\rverifying [" in second.text, [without, drawing])
    block.unlink()
    assert [process.wait(SECONDS) for process in (without, drawing)] == [0, 0]
    for process, its in ((without, screen), (drawing, second)):
        process.communicate()
        its.close()
    assert "\r" not in screen.text.replace("\r\n", "\n")
    assert terminal == "dumb" or screen.text == ""


@pytest.mark.slow
def test_the_tool_prints_lines_without_a_terminal(saved: Path, library: Path) -> None:
    block = saved.parent / "hang"
    block.touch()
    command = [tool(), "verify", str(saved), "--json"]
    process = start(command, library, subprocess.PIPE, HANG=f"large:{block}")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("cairn: verifying,   0%  ")  # after ten seconds
    block.unlink()
    output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert output.startswith("{")


def test_closed_streams_get_no_output(saved: Path, library: Path) -> None:
    """The progress of the tool has the number of a stream, which must not be that of a file of the tool."""
    block = saved.parent / "hang"
    block.touch()
    target = saved.parent / "w.npy"
    program = f"exec {tool()} cat {saved} w --npy {target} <&- >&- 2>&-"
    process = subprocess.Popen(
        ["bash", "-c", program], env={**os.environ, "LD_PRELOAD": str(library), "HANG": f"large:{block}"}, text=True
    )
    wait_for(Path(f"{block}.reached").exists, [process])
    streams = [str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in range(3)]
    block.unlink()
    assert process.wait(SECONDS) == 0
    assert streams == [os.devnull] * 3
