"""How far a save is."""

from typing import NamedTuple


class Progress(NamedTuple):
    """How far one rank's part of a save is.

    `phase`: staging, writing, syncing, publishing (files get their final names), waiting (for other ranks), committing,
    or ended.
    """

    phase: str
    bytes_written: int  # of this rank's files
    bytes_total: int  # 0 until it is known
