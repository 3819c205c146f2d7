"""Fixtures of the Python tests. A test module imports `torch` if its tests compare with stock torch."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kills import Killer
    from ranks import Gang


class FailuresAtOnce:
    """Prints each failure when it occurs: a run that is cut short prints no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.write_line(f"{report.when} of {report.nodeid} failed after {report.duration:.0f} s:")
            self._terminal.write_line(report.longreprtext[-4000:])


@pytest.hookimpl(trylast=True)  # after the terminal's
def pytest_configure(config: pytest.Config) -> None:
    """Restores Ctrl-C for the programs of tests: a shell ignores the signal in programs of the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):  # not in a worker of xdist
        config.pluginmanager.register(FailuresAtOnce(terminal))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests that need gigabytes, unless CAIRN_HUGE=1 asks for them."""
    if item.get_closest_marker("huge") and os.environ.get("CAIRN_HUGE") != "1":
        pytest.skip("needs gigabytes of memory and disk: CAIRN_HUGE=1")


# After an asynchronous save fails in its call, the writer withdraws the save's files. The call does not wait for the
# withdrawal.
_WITHDRAWAL_SECONDS = 240.0


@pytest.fixture(autouse=True)
def no_opt_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes CAIRN_ALLOW_PICKLE: the variable, set in the developer's environment, must not decide a test."""
    monkeypatch.delenv("CAIRN_ALLOW_PICKLE", raising=False)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Path]:
    """A directory for a checkpoint, not yet made.

    Soon after the test the directory must hold no private file of a save.
    """
    directory = tmp_path / "checkpoint"
    yield directory
    if not directory.is_dir() or directory.is_symlink():
        return
    give_up_at = time.monotonic() + _WITHDRAWAL_SECONDS
    while litter := [path.name for path in directory.iterdir() if path.name.startswith(".cairn-")]:
        assert time.monotonic() < give_up_at, f"left behind: {litter}"
        time.sleep(0.01)


@pytest.fixture
def fresh_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """``cairn.report()`` counts only the calls of the running test, and each first call warns again."""
    from cairn._process import part
    from cairn._telemetry.engine_use import CallCounts

    monkeypatch.setattr(part(CallCounts), "counts", {})


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Killer"]:
    """Runs work in forks, and kills them at chosen places."""
    from kills import Killer

    made = Killer(tmp_path_factory.mktemp("killer"))
    yield made
    made.close()


def ranks_of(size: int) -> Iterator["Gang"]:
    from ranks import gang  # imports torch

    with gang(size) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four() -> Iterator["Gang"]:
    """Four ranks of a gloo group."""
    yield from ranks_of(4)


@pytest.fixture(scope="module")
def three() -> Iterator["Gang"]:
    """Three ranks of a second gloo group."""
    yield from ranks_of(3)


@pytest.fixture(scope="module")
def two() -> Iterator["Gang"]:
    """Two ranks of a third gloo group."""
    yield from ranks_of(2)
