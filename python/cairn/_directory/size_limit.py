"""A bound for the memory of tensors that a checkpoint's metadata describes, checked before the memory is taken."""

import contextlib
import math
from pathlib import Path

from cairn import _engine
from cairn.errors import Corrupt, UnsafeContent

# Hostile metadata may name few bytes very often: all tensors together may have so many times the bytes of the files, or
# so many bytes.
_TIMES_MAX = 64
_BYTES_FREE = 64 << 20


class SizeLimit:
    """The bytes that reads of a checkpoint in `place` may still take."""

    def __init__(self, checkpoint: _engine.Checkpoint, place: str) -> None:
        self._checkpoint = checkpoint
        self._place = place
        self._bytes_left: int | None = None

    def add(self, key: str, sizes: tuple[int, ...], item_bytes: int, held: int) -> None:
        """Counts a box of `sizes` of the tensor under `key`, whose chunks have `held` bytes in the files.

        Raises Corrupt if the chunks can't hold the box. A file of ``torch.save`` may repeat elements of a tensor, and
        an item that went through a stream transform may be compressed: these may hold fewer bytes than the box. Raises
        UnsafeContent for boxes that together have too many bytes.
        """
        may_hold_less = self._checkpoint.format == "torch" or self._checkpoint.has_transforms
        if math.prod(sizes) > held and not may_hold_less:
            raise Corrupt(
                f"the chunks of '{key}' hold less than the metadata says",
                key=key,
                expected=f"{math.prod(sizes)} elements",
                actual=f"{held} bytes",
            )
        if self._bytes_left is None:
            self._bytes_left = max(_BYTES_FREE, _TIMES_MAX * self._bytes_of_files())
        self._bytes_left -= math.prod(sizes) * item_bytes
        if self._bytes_left < 0:
            raise UnsafeContent(
                f"the tensors of the checkpoint in '{self._place}' name the bytes of its files very often; read single "
                "keys by cairn.open(), and parts of a tensor by its read()",
                key=key,
                expected=f"at most {_TIMES_MAX} times the bytes of the files",
            )

    def _bytes_of_files(self) -> int:
        total = 0
        place = Path(self._place)
        for path in [place] if place.is_file() else [place / file for file in self._checkpoint.files]:
            with contextlib.suppress(OSError):  # the read names the missing file
                total += path.stat().st_size
        return total
