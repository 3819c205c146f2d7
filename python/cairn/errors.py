"""The exceptions of Cairn: one class per reason that callers handle differently.

Each class derives from :class:`Error` and from a built-in exception; code without knowledge of Cairn catches the
built-in one. With torch, ``cairn.save`` and ``cairn.load`` raise subclasses that also derive from DCP's
``CheckpointException``.
"""

import errno
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from cairn._torch_names import modules

Frame: TypeAlias = tuple[str, int, str, str]  # file, line, function, source line


_SHOWN_MAX = 1000  # characters of an expected or found value in str(error)


class ExceptionRecord(NamedTuple):
    """An exception of a rank as plain data, which other processes can read. All texts are bounded."""

    class_name: str  #: with its module, "builtins.OSError"
    text: str  #: ``str(exception)``
    error_number: int  #: errno of an OSError, else 0
    frames: list[Frame]  #: where it was raised, the outermost call first


class Error(Exception):
    """The reason of a failure, and its place. ``str(error)`` holds everything in one line.

    ``code`` is the engine's name of the reason. The remaining attributes are None where they do not apply: ``key``
    (flat name in the state dict), ``rank``, ``file`` (in the checkpoint's directory), ``offset`` (bytes in ``file``),
    ``expected`` and ``actual``.
    """

    code: ClassVar[str] = "kInternal"

    message: str
    key: str | None
    rank: int | None
    file: str | None
    offset: int | None
    expected: str | None
    actual: str | None
    #: After a call of several ranks: the failure of each failed rank, and the record of the exception that caused the
    #: failure.
    causes: list[tuple["Error", ExceptionRecord | None]]
    #: Whether the ``load_state_dict()`` of an entry of the caller's has raised the error: it says nothing of the
    #: checkpoint.
    _is_of_entry: bool = False
    #: The message without the texts of the attributes. The message of an error of the engine has these texts.
    _bare_message: str

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
        # Not super(): since Python 3.14 most built-in exceptions have no __init__ of their own, and super() would find
        # that of DCP's CheckpointException in the subclasses that derive from both.
        built_in = next(each for each in type(self).__mro__ if each.__module__ == "builtins")
        built_in.__init__(self, message)  # type: ignore[misc]
        self.message = message
        self._bare_message = message
        self.key = key
        self.rank = rank
        self.file = file
        self.offset = offset
        self.expected = expected
        self.actual = actual
        self.causes = []

    @property
    def place(self) -> dict[str, Any]:
        """The attributes that locate the failure, as keywords of the constructor."""
        names = ("key", "rank", "file", "offset", "expected", "actual")
        return {name: getattr(self, name) for name in names}

    def under(self, key: str) -> "Error":
        """Returns this error, with `key` added to the message and attributes if the error names no key yet."""
        if self.key is not None:
            return self
        named = type(self)(f"{self.message} (key '{key}')", **{**self.place, "key": key})
        named._bare_message = self._bare_message
        return named

    def __str__(self) -> str:
        # An error of the engine has them in its message.
        parts = (("expected", self.expected), ("found", self.actual))
        missing = [f"; {name} {text[:_SHOWN_MAX]}" for name, text in parts if text and text not in self.message]
        return self.message + "".join(missing)

    def __reduce__(self) -> tuple[Any, ...]:
        # with attributes that callers have attached
        return _rebuild, (type(self), self.message, self.place), self.__dict__


def _rebuild(kind: type[Error], message: str, place: dict[str, Any]) -> Error:
    return kind(message, **place)


class SystemFailure(Error, OSError):
    """The operating system refused an operation; ``errno`` holds the reason."""

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
    """A wrong argument, or a state dict that does not fit the checkpoint."""

    code = "kInvalidArgument"


class UnusableDirectory(InvalidArgument, SystemFailure):
    """A save into the directory can't work: a file is in the place of the directory (``errno`` is ENOTDIR), or the file
    system is read-only (EROFS). Choose another directory."""


class MissingKey(Error, KeyError):
    """The checkpoint lacks requested keys.

    ``keys`` has all keys that this rank's state dict holds and the checkpoint lacks. If only other ranks lack keys,
    ``keys`` has the key of the error.
    """

    code = "kMissingKey"
    keys: tuple[str, ...]

    def __init__(self, message: str, *, keys: Iterable[str] = (), **place: Any) -> None:
        super().__init__(message, **place)
        self.keys = tuple(keys) or (() if self.key is None else (self.key,))

    @property
    def place(self) -> dict[str, Any]:
        """As in Error, with the keys."""
        return {**super().place, "keys": self.keys}


class NotFound(SystemFailure, FileNotFoundError):
    """No checkpoint exists in the directory, or a file of the checkpoint is missing."""

    code = "kNotFound"
    default_errno = errno.ENOENT


class Corrupt(Error, ValueError):
    """The bytes differ from the saved bytes. A retry does not help: load another checkpoint."""

    code = "kCorrupt"


class UnsafeContent(Error, ValueError):
    """Reading on would run code from the checkpoint, leave its directory, or use memory or time out of proportion to
    its size."""

    code = "kUnsafe"


class Unsupported(Error, NotImplementedError):
    """Well-formed content that this version of Cairn neither reads nor writes."""

    code = "kUnsupported"


class Unavailable(SystemFailure):
    """The operating system refused an operation (an I/O error, a permission): remove the cause, then retry."""

    code = "kUnavailable"


class NoSpace(SystemFailure):
    """The device or the quota is full. The previous checkpoint is intact."""

    code = "kNoSpace"
    default_errno = errno.ENOSPC


class Superseded(Error, RuntimeError):
    """Another save was committed in the directory first; this save withdrew its files."""

    code = "kSuperseded"


class Replaced(Error, RuntimeError):
    """A later save replaced the checkpoint during the read: open the checkpoint again."""

    code = "kReplaced"


class Cancelled(Error, RuntimeError):
    """The caller cancelled the call."""

    code = "kCancelled"


class InternalError(Error, RuntimeError):
    """A bug in Cairn: please report it."""

    code = "kInternal"


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
