"""cairn.simulate_run."""

import math
import statistics
from typing import Any

import pytest

import cairn


def test_a_run_without_failures_pays_for_its_saves() -> None:
    run = cairn.simulate_run(1, save_seconds=6, interval=600)
    assert run.has_ended
    assert run.failure_count == 0
    assert run.work == 86400
    assert run.saves == 6 * run.save_count
    assert run.elapsed == pytest.approx(run.work + run.saves)
    assert run.good_share == pytest.approx(0.99, abs=1e-3)


def test_a_log_of_failures_is_replayed() -> None:
    """The second failure comes before the save of its hour is durable."""
    hour = 1 / 24
    run = cairn.simulate_run(
        10 * hour,
        save_seconds=0,
        durable_seconds=600,
        restart_seconds=300,
        failures=[2.5 * hour, 5 * hour],
        interval=3600,
    )
    assert run.failure_count == 2
    assert run.restarts == 600
    # Training goes on at 2 h 35 min, with the work of 2 h; saves follow at 3 h 35 and 4 h 35 min.
    assert run.redone == 1800 + 1500
    assert run.elapsed == 36000 + run.redone + run.restarts


def test_the_rate_is_of_each_rank() -> None:
    costs: dict[str, Any] = {"save_seconds": 5, "restart_seconds": 60}
    whole = cairn.simulate_run(20, failures=8, **costs)
    assert whole.failure_count > 100
    assert cairn.simulate_run(20, failures=8 / 16384, ranks=16384, **costs) == whole
    assert cairn.simulate_run(20, failures=8, seed=2, **costs) != whole


@pytest.mark.parametrize(("save", "durable", "restart"), [(0.5, 30, 300), (10, 120, 600), (120, 120, 900)])
def test_the_automatic_interval_is_near_the_best(save: float, durable: float, restart: float) -> None:
    """16,384 ranks, 8 failures a day: within 2 % of the best fixed interval."""

    def elapsed(interval: Any) -> float:
        return statistics.mean(
            cairn.simulate_run(
                30,
                save_seconds=save,
                durable_seconds=durable,
                restart_seconds=restart,
                failures=8 / 16384,
                ranks=16384,
                interval=interval,
                seed=seed,
            ).elapsed
            for seed in range(8)
        )

    best = min(elapsed(60 * 1.2**power) for power in range(29))
    assert elapsed("auto") <= 1.02 * best


def test_a_run_that_fails_too_often_does_not_end() -> None:
    run = cairn.simulate_run(1, save_seconds=10, durable_seconds=1000, failures=2000, interval=1000, most_days=5)
    assert not run.has_ended
    assert run.work < 86400
    assert run.elapsed == 5 * 86400


@pytest.mark.parametrize(
    "wrong",
    [
        {"save_seconds": -1},
        {"save_seconds": math.nan},
        {"interval": 0},
        {"interval": "often"},
        {"failures": -1},
        {"failures": [2.0, 1.0]},
        {"failures": [1.0], "ranks": 2},
        {"ranks": 0},
        {"interval_bounds": (100, 10)},
        {"expected_between_failures_days": 0},
        {"most_days": math.inf},
    ],
)
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(cairn.InvalidArgument):
        cairn.simulate_run(1, **{"save_seconds": 1, **wrong})
