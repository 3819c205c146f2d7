"""simulate_run: the cost of saves and failures of a run, for an interval of saves; needs no torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from cairn import _engine
from cairn._torch_names import modules
from cairn.errors import InvalidArgument

_DAY_SECONDS = 86400.0


class SimulatedRun(NamedTuple):
    """The result of :func:`simulate_run`, in seconds: `elapsed` is the sum of the next four.

    `work`: the training that counts; less than asked for if the run has not ended. `saves`: lost to saves. `redone`:
    training that failures undid. `restarts`: from each failure until the training went on.
    """

    elapsed: float
    work: float
    saves: float
    redone: float
    restarts: float
    save_count: int  # durable ones
    failure_count: int
    has_ended: bool  # False after `most_days`
    good_share: float  # work / elapsed


def simulate_run(  # noqa: PLR0913 - keywords, each with a default
    work_days: float,
    *,
    save_seconds: float,
    durable_seconds: float | None = None,
    restart_seconds: float = 0.0,
    failures: float | Sequence[float] = 0.0,
    ranks: int = 1,
    interval: float | Literal["auto"] = "auto",
    interval_bounds: tuple[float, float] = (60.0, 4 * 3600.0),
    expected_between_failures_days: float = 1.0,
    most_days: float = 3652.5,
    seed: int = 1,
) -> SimulatedRun:
    """Returns the calculated cost of saves and failures of a run that needs `work_days` of training.

    A save delays the training by `save_seconds`, and is durable after `durable_seconds` (None: after `save_seconds`). A
    failure loses the training since the start of the last durable save, and `restart_seconds`. `failures`: the number
    of failures a day, which come at random (`seed`), of the whole job, or of a rank if `ranks` is the number of ranks;
    or the times of failures in days since the start of the run, ascending, of a log.

    `interval`: seconds from the start of a save to the start of the next; "auto": as ``save_every="auto"`` of
    :class:`cairn.CheckpointManager` sets it from the failures so far, within `interval_bounds`, with
    `expected_between_failures_days` before the first. Raises InvalidArgument.
    """
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise InvalidArgument("ranks must be a positive number", actual=repr(ranks))
    if interval != "auto" and not isinstance(interval, (int, float)):
        raise InvalidArgument("interval must be a number of seconds or 'auto'", actual=repr(interval))
    between, times = 0.0, list[float]()
    if isinstance(failures, (int, float)):
        if not failures >= 0:
            raise InvalidArgument("failures must be a number a day, or times", actual=repr(failures))
        between = _DAY_SECONDS / (failures * ranks) if failures > 0 else 0.0
    elif ranks != 1:
        raise InvalidArgument("ranks belongs to a rate of failures, not to their times", actual=repr(ranks))
    else:
        times = [time * _DAY_SECONDS for time in failures]
    durable = save_seconds if durable_seconds is None else durable_seconds
    return SimulatedRun(
        *_engine.simulate_run(
            (work_days * _DAY_SECONDS, most_days * _DAY_SECONDS),
            (save_seconds, durable, restart_seconds),
            (times, between, expected_between_failures_days * _DAY_SECONDS, seed),
            None if interval == "auto" else float(interval),
            interval_bounds,
        )
    )


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
