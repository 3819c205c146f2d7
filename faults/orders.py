"""The orders to the ranks of a job: how to save in the background, and where to strike."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Whom = Literal["trainer", "writer", "both"]
AT_RETURN = -1  # instead of the number of a call: after async_save has returned and the rank has reported the staging


class Strike(NamedTuple):
    """A rank's signal to itself at a collective."""

    call: int  # the number of the collective in the save
    after: bool
    signal: int
    delay_seconds: float = 0.0  # after the place is reached
    whom: Whom = "trainer"  # the processes of the rank to signal


@dataclass(frozen=True)
class AsyncSave:
    """The way of a job to save in the background."""

    process: bool
    staged_later: bool = False  # by a stager that stages while the next step runs
    asks: bool = True  # whether the rank asks the future; if not, the next call must raise the error
    deadline_seconds: float = 15.0  # a rank that dies before its writer has begun is noticed only by this deadline

    def __str__(self) -> str:
        later = ", staged later" if self.staged_later else ""
        return f"{'process' if self.process else 'thread'} type{later}{'' if self.asks else ', nobody asks the future'}"
