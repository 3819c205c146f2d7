"""The progress of a save."""

from typing import TYPE_CHECKING, NamedTuple

from cairn._torch_names import modules


class Progress(NamedTuple):
    """The progress of one rank's part of a save.

    `phase`: staging, writing, syncing, publishing (files get their final names), waiting (for the remaining ranks),
    committing, or ended.
    """

    phase: str
    bytes_written: int  # of this rank's files
    bytes_total: int  # 0 until the total is known


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
