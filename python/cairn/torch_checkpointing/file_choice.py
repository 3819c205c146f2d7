"""The kind of files that a saver writes: those of torch_checkpointing, or those of a DCP checkpoint."""

from typing import Literal, TypeAlias, get_args

from cairn._process import ProcessPart, part
from cairn.errors import InvalidArgument

Files: TypeAlias = Literal["theirs", "ours"]


class _Chosen(ProcessPart):
    """The choice of ``cairn.torch_checkpointing.install``."""

    def __init__(self) -> None:
        self.files: Files = "theirs"

    def in_child(self) -> "_Chosen":
        """A child inherits the installation."""
        return self


def chosen(files: Files | None) -> Files:
    """Returns the kind of files for an argument `files`; None: as install() says. Raises InvalidArgument."""
    return part(_Chosen).files if files is None else checked(files)


def checked(files: Files) -> Files:
    """Returns `files`. Raises InvalidArgument for any other text."""
    if files not in get_args(Files):
        raise InvalidArgument("there are no such files", expected="files='theirs' or files='ours'", actual=repr(files))
    return files


def choose(files: Files) -> None:
    """Sets the kind of files for savers that are made with ``files=None``."""
    part(_Chosen).files = files
