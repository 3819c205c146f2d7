"""The transport of a save's ticket to the ranks, and of failures to the coordinator, in a save that torch drives.

``torch.distributed.checkpoint`` passes plans, results and exceptions between the ranks, always pickled, and calls a
storage writer between these steps. The messages of this protocol travel inside these objects:

1. The coordinator claims the directory, and puts the ticket into every rank's plan (``prepare_global_plan``).
2. Unpickling a ticket on a rank records the ticket there, in the thread that drives the save. A planner that caches
   plans drops the received plan and returns the plan of an earlier save, with the earlier ticket. Therefore the plan
   alone can't be trusted.
3. The rank uses the newer of the ticket in its plan and the recorded ticket (``write_data``). The rank writes, and
   publishes its files.
4. A rank that fails withdraws its own files and marks the exception. When torch has gathered all outcomes, every rank
   has finished step 3. As the coordinator unpickles the mark, the claim is given up, which withdraws the files of all
   ranks. Exceptions from elsewhere than the callers of mark() (a planner's ``finish_plan``) have no mark: the claim
   then lasts until its writer is used again or destroyed, or until the driver gives the claim up.
5. The coordinator commits (``finish``).
"""

import itertools
import os
import threading
import weakref
from typing import Any

from cairn import _engine
from cairn._process import ProcessPart, part
from cairn._settings import is_single_writer, save_deadlines
from cairn.errors import InvalidArgument


class _ClaimsAndTickets(ProcessPart):
    """`claims`: the claims of this process, by ticket. `seen.ticket`: the last that a thread unpickled or made."""

    def __init__(self) -> None:
        self.claims: weakref.WeakValueDictionary[bytes, Claim] = weakref.WeakValueDictionary()
        self.seen = threading.local()
        self.numbers = itertools.count()  # of tickets, in the order in which this process saw them


class Claim:
    """A directory, claimed for a save by the save's coordinator. Destroying the last reference gives the claim up."""

    def __init__(self, held: _engine.SaveClaim) -> None:
        self._held = held
        self._content = held.ticket
        self._shares = held.model_shares
        part(_ClaimsAndTickets).claims[self._content] = self

    @property
    def save_id(self) -> str:
        """The id of the save, in hexadecimal, equal to the id in the commit record."""
        return self._held.save_id

    def ticket(self, rank: int) -> "Ticket":
        """Returns the ticket for the plan of `rank`."""
        return Ticket(self._content, rank, self._shares[rank][0] if self._shares else b"")

    def boxes(self, rank: int) -> list[int]:
        """Returns the indices of the boxes of a model that `rank` writes, in order."""
        return self._shares[rank][1]

    def commit(self, metadata: bytes, files: list[tuple[str, int, int]]) -> list[str]:
        """Commits the checkpoint: pickled `metadata` and data files (name, size, trailer checksum). Returns
        warnings."""
        return self._held.commit(metadata, files)

    def commit_model(self, boxes: list[tuple[str, str, int]]) -> list[str]:
        """Commits a model with the boxes (key, file, bytes) of all ranks. Returns warnings."""
        return self._held.commit_model(boxes)

    def give_up(self) -> None:
        """Withdraws the files of an uncommitted save."""
        self._held.withdraw()


def claim_checkpoint(
    directory: str | os.PathLike[str], *, overwrite: bool, durable: bool, alone_as_rank: int | None
) -> Claim:
    """Claims `directory` for a DCP checkpoint."""
    return Claim(
        _engine.SaveClaim(
            os.fsencode(directory),
            overwrite=overwrite,
            durable=durable,
            alone_as_rank=alone_as_rank,
            deadlines=save_deadlines(),
            single_writer=is_single_writer(),
        )
    )


class Ticket:
    """The input that a rank needs to write its share: the content, which only the engine reads and which is that of all
    ranks, the rank's number, and of a model the rank's share, which only the engine reads."""

    def __init__(self, content: bytes, rank: int, share: bytes = b"") -> None:
        self.content = content
        self.rank = rank
        self.share = share
        here = part(_ClaimsAndTickets)
        self._number = next(here.numbers)
        here.seen.ticket = self  # (2)

    def is_older_than(self, other: "Ticket") -> bool:
        """Returns whether `other` belongs to another save and was recorded later."""
        return self.content != other.content and self._number < other._number

    def __reduce__(self) -> tuple[Any, ...]:
        return Ticket, (self.content, self.rank, self.share)


def current_ticket(planned: object) -> Ticket:
    """Returns the ticket to write under; `planned` is the plan's storage data. (3)"""
    seen: Ticket | None = getattr(part(_ClaimsAndTickets).seen, "ticket", None)
    ticket = planned if isinstance(planned, Ticket) else seen
    if ticket is None:
        raise InvalidArgument(
            "the plan holds no ticket: it did not pass through this writer's prepare_global_plan()",
            actual=type(planned).__name__,
        )
    return seen if seen is not None and ticket.is_older_than(seen) else ticket


def mark(error: BaseException, ticket: Ticket) -> None:
    """Makes `error` give up the save of `ticket` when the coordinator unpickles `error`. (4)"""
    error.__dict__["_cairn_mark"] = _Mark(ticket.content)


class _Mark:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self._content,)


def _arrived(content: bytes) -> _Mark:
    claim = part(_ClaimsAndTickets).claims.get(content)
    if claim is not None:
        claim.give_up()
    return _Mark(content)
