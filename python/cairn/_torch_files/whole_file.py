"""A file of ``torch.save`` that gets its name when it is whole and synced.

1. Write a file without a name (``O_TMPFILE``): a kill leaves nothing. On a file system without such files, the file has
   a private name, and a kill leaves it.
2. Sync the file. Give it the mode of the file that it replaces.
3. Link the file to a private name in the directory of the target, and rename the link to the target.
4. Sync the directory.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

_NO_SUCH_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT)  # ENOENT: Linux before 3.11


def save_whole(state_dict: dict[str, Any], file: Path) -> None:
    """Saves the state as `file`. After a failure `file` is as before, and no other file is left."""
    private = file.with_name(f".cairn-{os.getpid()}-{os.urandom(4).hex()}")  # short: any name of a file has room
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _new_file(private) as stream:
            _save(state_dict, stream, file)
            stream.flush()
            _take_mode(stream, file)
            os.fsync(stream.fileno())
            if not private.exists():
                # With a descriptor of a directory Python calls linkat(), which follows the link in /proc.
                os.link(f"/proc/self/fd/{stream.fileno()}", private.name, src_dir_fd=folder, dst_dir_fd=folder)
        private.replace(file)
        os.fsync(folder)
    except BaseException:
        private.unlink(missing_ok=True)
        raise
    finally:
        os.close(folder)


class _NotingStream:
    """A stream that keeps the error of a failed write: torch raises another error in its place."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._stream.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._stream.flush()


def _save(state_dict: dict[str, Any], stream: BinaryIO, file: Path) -> None:
    """Raises OSError, with the file's name, for a failed write."""
    noting = _NotingStream(stream)
    try:
        torch.save(state_dict, cast(BinaryIO, noting))
    except RuntimeError as error:
        if noting.error is None:
            raise
        raise OSError(noting.error.errno, f"writing failed: {noting.error.strerror}", str(file)) from error


def _take_mode(stream: BinaryIO, replaced: Path) -> None:
    """A private file stays private when a new file replaces it."""
    with contextlib.suppress(FileNotFoundError, PermissionError):  # some file systems have no modes
        os.fchmod(stream.fileno(), stat.S_IMODE(replaced.stat().st_mode) & 0o777)


def _new_file(private: Path) -> BinaryIO:
    try:
        return os.fdopen(os.open(private.parent, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    except OSError as error:
        if error.errno not in _NO_SUCH_FILES:
            raise
        return private.open("xb")
