"""What the ranks of a job are told: how to save in the background, and where to be struck."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Whom = Literal["trainer", "writer", "both"]
AT_RETURN = -1  # in place of the number of a call: when async_save has returned, and the rank has said so


class Strike(NamedTuple):
    """A rank strikes itself at one of the calls by which ranks talk to each other."""

    call: int  # its number in the save
    after: bool
    signal: int
    delay_seconds: float = 0.0  # from then on
    whom: Whom = "trainer"  # whom of the rank


@dataclass(frozen=True)
class AsyncSave:
    """How a job saves in the background."""

    process: bool
    staged_later: bool = False  # by a stager that stages while the next step runs
    asks: bool = True  # the future for its result; else the next call has to tell what went wrong
    deadline_seconds: float = 15.0  # a rank that dies before its writer has begun is only missed, not seen to die

    def __str__(self) -> str:
        later = ", staged later" if self.staged_later else ""
        return f"{'process' if self.process else 'thread'} type{later}{'' if self.asks else ', nobody asks the future'}"
