"""Fixtures of the Python tests. A test that compares with stock torch has `torch` imported by its own module."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ranks import Gang


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that need gigabytes run only where somebody asks for them."""
    if item.get_closest_marker("huge") and os.environ.get("CAIRN_HUGE") != "1":
        pytest.skip("needs gigabytes of memory and disk: CAIRN_HUGE=1")


# An asynchronous save that fails in its call is withdrawn by the writer, which the call does not wait for.
_WITHDRAWAL_SECONDS = 20.0


@pytest.fixture(autouse=True)
def no_opt_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment of whoever runs the tests allows must not decide them."""
    monkeypatch.delenv("CAIRN_ALLOW_PICKLE", raising=False)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Path]:
    """A directory for a checkpoint, not yet made. Soon after the test it must hold no litter of a save."""
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
    """``cairn.report()`` counts only the calls of this test, which are warned of as if they were the first."""
    monkeypatch.setattr("cairn.engine_use._counts", {})


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
    """Three ranks of another one."""
    yield from ranks_of(3)


@pytest.fixture(scope="module")
def two() -> Iterator["Gang"]:
    """Two ranks of a third one."""
    yield from ranks_of(2)
