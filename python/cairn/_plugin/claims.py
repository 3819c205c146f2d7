"""How the ranks of a save that torch drives come by its ticket, and how its coordinator learns that one has failed.

``torch.distributed.checkpoint`` passes plans, results and exceptions between the ranks, always pickled, and calls a
storage writer between. That is all there is to speak with:

1. The coordinator claims the directory, and gives every rank's plan the ticket (``prepare_global_plan``).
2. A ticket that reaches a rank is noted there as it is unpickled, by the thread that drives the save. A planner that
   caches plans drops what it was sent and hands out the plan of an earlier save, with the ticket of that one: the plan
   alone can't be trusted.
3. The rank takes the newer of the ticket in its plan and the one that was noted (``write_data``). It writes, and
   publishes its files.
4. A rank that fails withdraws its own files and marks the exception. When torch has gathered all outcomes, everybody is
   done with step 3; as the coordinator unpickles the mark, it gives up the claim, which withdraws the files of all.
   Other exceptions than those of this module's callers (a planner's ``finish_plan``) bear no mark: the claim then lasts
   until its writer is used again or dies, or the driver says so.
5. The coordinator commits (``finish``).
"""

import itertools
import os
import threading
import weakref
from typing import Any

from cairn import _engine
from cairn._settings import save_deadlines
from cairn.errors import InvalidArgument

_numbers = itertools.count()
_claims: "weakref.WeakValueDictionary[bytes, Claim]" = weakref.WeakValueDictionary()  # of this process, by ticket
_here = threading.local()  # .ticket: the one that this thread saw last


class Claim:
    """A directory, claimed for one save by its coordinator. When nobody holds it any more, it is given up."""

    def __init__(
        self, directory: str | os.PathLike[str], *, overwrite: bool, durable: bool, alone_as_rank: int | None
    ) -> None:
        self._held = _engine.SaveClaim(
            os.fsencode(directory),
            overwrite=overwrite,
            durable=durable,
            alone_as_rank=alone_as_rank,
            deadlines=save_deadlines.current(),
        )
        self._content = self._held.ticket
        _claims[self._content] = self

    @property
    def save_id(self) -> str:
        """The id of the save, in hexadecimal: that of its commit record."""
        return self._held.save_id

    def ticket(self, rank: int) -> "Ticket":
        """For the plan of `rank`."""
        return Ticket(self._content, rank)

    def commit(self, metadata: bytes, files: list[tuple[str, int, int]]) -> list[str]:
        """Makes `metadata`, pickled, the checkpoint, of data files (name, size, trailer checksum). Returns warnings."""
        return self._held.commit(metadata, files)

    def give_up(self) -> None:
        """Withdraws what has not been committed."""
        self._held.withdraw()


class Ticket:
    """What a rank needs to write its share: the content that the engine understands, and the rank's number."""

    def __init__(self, content: bytes, rank: int) -> None:
        self.content = content
        self.rank = rank
        self._number = next(_numbers)
        _here.ticket = self  # (2)

    def is_older_than(self, other: "Ticket") -> bool:
        """Whether `other` is of another save, and was seen later."""
        return self.content != other.content and self._number < other._number

    def __reduce__(self) -> tuple[Any, ...]:
        return Ticket, (self.content, self.rank)


def current_ticket(planned: object) -> Ticket:
    """The ticket to write under, given what the plan has for one. (3)"""
    seen: Ticket | None = getattr(_here, "ticket", None)
    ticket = planned if isinstance(planned, Ticket) else seen
    if ticket is None:
        raise InvalidArgument(
            "a plan that has not been through this writer's prepare_global_plan()", actual=type(planned).__name__
        )
    return seen if seen is not None and ticket.is_older_than(seen) else ticket


def mark(error: BaseException, ticket: Ticket) -> None:
    """Lets `error` give up the save of `ticket` when it reaches its coordinator. (4)"""
    error.__dict__["_cairn_mark"] = _Mark(ticket.content)


class _Mark:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self._content,)


def _arrived(content: bytes) -> _Mark:
    claim = _claims.get(content)
    if claim is not None:
        claim.give_up()
    return _Mark(content)
