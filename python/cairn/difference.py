"""The differences between two checkpoints; needs no torch."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from cairn import _engine
from cairn._directory import existing_place, naming_latest
from cairn._settings import links_followed, save_deadlines
from cairn._torch_names import modules
from cairn.errors import InvalidArgument


class NumberDifference(NamedTuple):
    """How far the numbers of two tensors are apart. Pairs with a NaN count only in `nan_on_one_side`."""

    nan_on_one_side: int
    largest_absolute: float  # inf: an infinity on one side only, or of both signs
    largest_relative: float  # |a - b| / max(|a|, |b|)
    largest_at: tuple[int, ...] | None  # the index of the first largest absolute difference; None: all are 0


class ElementDifference(NamedTuple):
    """How the elements of two tensors of equal shape differ."""

    elements: int  # of each tensor
    unequal: int  # elements with different bits; between two dtypes: numbers that differ
    differing: int  # with a tolerance: numbers further apart than the tolerance; otherwise equal to `unequal`
    first_differing: tuple[int, ...] | None  # the index of the first of `differing`
    numbers: NumberDifference | None  # None: neither floating point nor complex, compared only by bits


class KeyDifference(NamedTuple):
    """A key that differs.

    `a` and `b` are short texts of both sides: ``"float32 [2, 3]"`` for a tensor, the differing part of a value as
    Python prints it; None if the side lacks the key or the part. `place` is the place of the part in the value, for
    example ``"['betas'][1]"``. `elements` is None where no elements were compared: different shapes, dtypes that are
    not both floating point or both complex, tensors that only torch can read.
    """

    key: str
    kind: Literal["only_in_a", "only_in_b", "kind", "shape", "dtype", "elements", "value"]
    a: str | None
    b: str | None
    place: str
    elements: ElementDifference | None


class DiffReport(NamedTuple):
    """The result of :func:`diff`. True if the checkpoints differ."""

    differences: tuple[KeyDifference, ...]
    tolerated: tuple[KeyDifference, ...]  # tensors whose unequal elements or, with `ignore_dtype`, dtypes are allowed
    tensors: int  # keys of tensors on both sides
    values: int  # keys of values on both sides
    bytes_compared: int  # of the tensors, of both sides

    def __bool__(self) -> bool:
        return bool(self.differences)


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    tolerance: float | None = None,
    ignore_dtype: bool = False,
    keys: Iterable[str] = (),
    thread_count: int = 4,
    follow_links: bool | None = None,
) -> DiffReport:
    """Compares two checkpoints, of any two formats that :func:`open` reads: keys, shapes, dtypes, elements, values.

    Without `tolerance` the bits of the elements count: 0.0 and -0.0 differ, and so do two NaN with different payloads.
    With `tolerance`, two floating-point or complex numbers agree if their absolute or their relative difference
    (``|a - b| / max(|a|, |b|)``) is at most `tolerance`; NaN agrees with NaN, and an infinity only with itself.
    Integers and bools are always compared by their bits. Tensors of two dtypes differ, also if their numbers agree;
    with `ignore_dtype` such tensors count as tolerated if both dtypes are floating point, or both complex, and all
    numbers agree: ``diff(a, b, tolerance=0.004, ignore_dtype=True)`` checks a copy in bfloat16.
    Values are compared as values, with their types; `tolerance` applies to floats in values too.

    `keys` are patterns: ``*`` any characters, ``?`` one, ``[a-z]`` a set; a pattern also selects all keys below a
    match. By default all keys are compared. Not compared: chunks and files, requires_grad, recorded strides, nested
    paths and the order of keys.

    Tensors are read in windows of a few MiB on `thread_count` threads, so checkpoints of any size can be compared.
    Every byte read is compared with its checksum: damage raises Corrupt with key, file and offset, and is no
    difference.
    Raises NotFound if a side is no checkpoint, MissingKey if a pattern matches no key of either side, InvalidArgument
    for a tolerance that is negative, or 1 or more, UnsafeContent for a file of torch.save whose tensors repeat few
    elements very often, and Unavailable if a call that opens or reads a file takes longer than the
    `publish_deadline_seconds` of :func:`cairn.configure_saves`. Ctrl-C ends the call within a second.
    """
    if isinstance(keys, str):
        raise InvalidArgument("keys must be a list of patterns", expected=f"[{keys!r}]", actual=repr(keys))
    place_a, place_b = existing_place(a), existing_place(b)
    places = (os.fsencode(place_a), os.fsencode(place_b))
    with naming_latest(place_a):
        found = _engine.diff(
            places,
            (tolerance, ignore_dtype),
            list(keys),
            thread_count=thread_count,
            follow_links=links_followed(follow_links),
            deadlines=save_deadlines(),
        )
    differences, tolerated, tensors, values, bytes_compared = found
    return DiffReport(_differences(differences), _differences(tolerated), tensors, values, bytes_compared)


def _differences(found: "list[_engine.KeyDifference]") -> tuple[KeyDifference, ...]:
    return tuple(
        KeyDifference(key, kind, a, b, place, _elements(elements)) for key, kind, a, b, place, elements in found
    )


def _elements(found: "_engine.ElementDifference | None") -> ElementDifference | None:
    if found is None:
        return None
    elements, unequal, differing, first_differing, numbers = found
    difference = None if numbers is None else NumberDifference(*numbers)
    return ElementDifference(elements, unequal, differing, first_differing, difference)


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
