"""The exceptions of Cairn: one class per reason for which a caller would act differently.

Each is a :class:`Error` and a built-in exception, so that code which does not know Cairn catches the right thing. With
torch, ``cairn.save`` and ``cairn.load`` raise them as subclasses of DCP's ``CheckpointException`` as well.
"""

import errno
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from cairn._failures.exception_record import ExceptionRecord


class Error(Exception):
    """What went wrong, and where. ``str(error)`` tells it all in one line.

    ``code`` is the engine's name of the reason. The others are None where they do not apply: ``key`` (flat name in the
    state dict), ``rank``, ``file`` (in the checkpoint's directory), ``offset`` (bytes in ``file``), ``expected`` and
    ``actual``.
    """

    code: ClassVar[str] = "kInternal"

    message: str
    key: str | None
    rank: int | None
    file: str | None
    offset: int | None
    expected: str | None
    actual: str | None
    #: What failed on which rank, where several worked together: each failure, and the exception that it stands for.
    causes: list[tuple["Error", "ExceptionRecord | None"]]

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        rank: int | None = None,
        file: str | None = None,
        offset: int | None = None,
        expected: str | None = None,
        actual: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.rank = rank
        self.file = file
        self.offset = offset
        self.expected = expected
        self.actual = actual
        self.causes = []

    @property
    def place(self) -> dict[str, Any]:
        """The attributes that say where, as keywords of the constructor."""
        names = ("key", "rank", "file", "offset", "expected", "actual")
        return {name: getattr(self, name) for name in names}

    def under(self, key: str) -> "Error":
        """This error as one about `key`, for what does not know its key yet; itself if it does."""
        if self.key is not None:
            return self
        return type(self)(f"{self.message} (key '{key}')", **{**self.place, "key": key})

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.place), self.__dict__  # with what others have attached


def _rebuild(kind: type[Error], message: str, place: dict[str, Any]) -> Error:
    return kind(message, **place)


class SystemFailure(Error, OSError):
    """The system said no; ``errno`` says why."""

    default_errno: ClassVar[int] = errno.EIO

    def __init__(self, message: str, *, error_number: int = 0, **place: Any) -> None:
        super().__init__(message, **place)
        self.errno = error_number or self.default_errno
        self.strerror = message
        self.filename = self.file

    @property
    def place(self) -> dict[str, Any]:
        """As in Error, with the errno."""
        return {**super().place, "error_number": self.errno}


class InvalidArgument(Error, ValueError):
    """The caller's mistake, or a state dict that the checkpoint does not fit."""

    code = "kInvalidArgument"


class MissingKey(Error, KeyError):
    """The checkpoint lacks a key that was asked for."""

    code = "kMissingKey"


class NotFound(SystemFailure, FileNotFoundError):
    """There is no checkpoint, or a file of it is gone."""

    code = "kNotFound"
    default_errno = errno.ENOENT


class Corrupt(Error, ValueError):
    """The bytes are not those that were saved. Trying again is no use: fall back to another checkpoint."""

    code = "kCorrupt"


class UnsafeContent(Error, ValueError):
    """To read on would mean running code from the checkpoint, leaving its directory, or using memory or time out of
    proportion to its size."""

    code = "kUnsafe"


class Unsupported(Error, NotImplementedError):
    """Well-formed, but not something that this version reads or writes."""

    code = "kUnsupported"


class Unavailable(SystemFailure):
    """The system refused an operation (an I/O error, a permission): repair that, then try again."""

    code = "kUnavailable"


class NoSpace(SystemFailure):
    """The device or the quota is full. The previous checkpoint is still there."""

    code = "kNoSpace"
    default_errno = errno.ENOSPC


class Superseded(Error, RuntimeError):
    """Another save was committed in the same place first; this one withdrew its files."""

    code = "kSuperseded"


class Replaced(Error, RuntimeError):
    """The checkpoint was replaced by another one while it was being read: open it again."""

    code = "kReplaced"


class Cancelled(Error, RuntimeError):
    """The caller asked to stop."""

    code = "kCancelled"


class InternalError(Error, RuntimeError):
    """A mistake in Cairn itself: please report it."""

    code = "kInternal"


_BY_CODE: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        MissingKey,
        NotFound,
        Corrupt,
        UnsafeContent,
        Unsupported,
        Unavailable,
        NoSpace,
        Superseded,
        Replaced,
        Cancelled,
        InternalError,
    )
}


def from_engine(
    code: str, message: str, error_number: int, place: dict[str, Any], causes: list[tuple[Error, Any]]
) -> Error:
    """The exception for an error of the engine, which calls this. In `causes`, the fields of an ExceptionRecord."""
    from cairn._failures.exception_record import ExceptionRecord  # which needs this module

    kind = _BY_CODE.get(code, InternalError)
    if issubclass(kind, SystemFailure):
        error: Error = kind(message, error_number=error_number, **place)
    else:
        error = kind(message, **place)
    error.causes = [(cause, None if record is None else ExceptionRecord(*record)) for cause, record in causes]
    return error
