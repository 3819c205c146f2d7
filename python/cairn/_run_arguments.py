"""The arguments of a CheckpointManager, checked, and in the terms of the engine."""

import datetime
import math
import operator
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, SupportsFloat, SupportsIndex

import torch

from cairn.errors import InvalidArgument

SaveEvery = int | datetime.timedelta | Literal["auto"]


def schedule_of(
    save_every: SaveEvery | Sequence[SaveEvery] | None, bounds: tuple[float, float], between_failures: float
) -> tuple[Any, ...]:
    """Returns the engine's schedule: steps, seconds, whether automatic, the bounds, the time between failures."""
    parts = () if save_every is None else save_every if isinstance(save_every, (list, tuple)) else (save_every,)
    steps, seconds, automatic = None, None, False
    for part in parts:
        if part == "auto":
            automatic = True
        elif isinstance(part, datetime.timedelta) and part.total_seconds() > 0 and seconds is None:
            seconds = part.total_seconds()
        elif isinstance(part, int) and not isinstance(part, bool) and part > 0 and steps is None:
            steps = part
        else:
            raise InvalidArgument(
                "save_every has a part that is no interval, or a second one of its kind",
                expected="a positive number of steps, a positive timedelta, or 'auto', each at most once",
                actual=repr(part),
            )
    least, most = bounds
    if not 0 < least <= most < math.inf or not 0 < between_failures < math.inf:
        raise InvalidArgument(
            "interval_bounds and expected_between_failures must be positive, the lower bound first",
            actual=f"{bounds}, {between_failures} s",
        )
    return steps, seconds, automatic, float(least), float(most), between_failures


def check_seconds(what: str, seconds: float) -> None:
    """Raises InvalidArgument for no number, a negative or a huge one. `what`: the argument's name."""
    if not (isinstance(seconds, (int, float)) and math.isfinite(seconds) and 0 <= seconds <= 10**9):
        raise InvalidArgument(f"{what} must be a number of seconds", actual=repr(seconds))


def raising_of(signals: Sequence[int]) -> list[int]:
    """Returns the signals for which Python's own handler raises an exception, which would end the step."""
    raises = signal.SIGINT in signals and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return [signal.SIGINT] if raises else []


def number_of(step: SupportsIndex) -> int:
    """Returns a step as an int. Raises InvalidArgument for a negative one."""
    number = operator.index(step)
    if number < 0 or isinstance(step, bool):
        raise InvalidArgument("a step is a number from 0", actual=repr(step))
    return number


def numbers_of(metrics: Mapping[str, SupportsFloat] | None) -> dict[str, float]:
    """Returns the metrics as floats. Raises InvalidArgument for one that is no number."""
    numbers = {}
    for name, value in (metrics or {}).items():
        try:
            numbers[str(name)] = float(value.detach() if isinstance(value, torch.Tensor) else value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InvalidArgument(
                f"the metric '{name}' is no number",
                expected="a number, or a tensor of one element",
                actual=f"{type(value).__name__}: {error}",
            ) from error
    return numbers


def state_of(state: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the state dict of the argument, which may be a function that makes it. Raises InvalidArgument for another
    type, and the function's exceptions."""
    made: Any = state
    if callable(state) and not isinstance(state, (Mapping, torch.nn.Module)):  # a module's call is its forward()
        made = state()
    if not isinstance(made, Mapping):
        raise InvalidArgument(
            "the state is no state dict", expected="a dict, or a function that returns one", actual=repr(type(made))
        )
    return dict(made)
