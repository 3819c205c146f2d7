"""A file of ``torch.save``, read by torch by the rules of ``torch.load(weights_only=True)`` where these hold.

The records of an archive are compared with the checksums that the archive has of them: torch compares no checksum of a
file that it maps.
"""

import pickle
import re
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cairn._settings import line_that_allows
from cairn._state.payloads import REFUSED_CLASS, check_rules_hold
from cairn.errors import Corrupt, Error, NotFound, UnsafeContent, Unsupported

_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")
_READ_BYTES = 1 << 20
_FIRST_BYTES = b"PK\x03\x04"


def load_torch_file(file: Path, allow_pickle: bool, *, check: bool = True) -> Any:
    """Returns the content of a file of ``torch.save``: on the CPU, and memory-mapped where the file's format allows.

    `check`: whether to read the whole file first, and to compare every record with its checksum. Legacy files have no
    checksums.

    Raises UnsafeContent for a file that can't be read without running code, unless `allow_pickle`, and for a pipe or a
    device; Unsupported for a TorchScript archive, and if code that `allow_pickle` allows is missing; Corrupt; NotFound.
    """
    name = file.name
    if not allow_pickle:
        check_rules_hold(name, file=name)
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for the pipe's writer
            raise UnsafeContent(f"'{file}' is not a regular file", file=name)
        mmap: bool | None = None
        if _is_archive(file):
            records = _check_records(file, check)
            if records.is_script:
                raise Unsupported(f"{name} is a TorchScript archive, which torch.jit.load reads", file=name)
            mmap = records.are_stored  # torch would take mapped compressed bytes for elements
        return torch.load(file, map_location="cpu", weights_only=not allow_pickle, mmap=mmap)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file '{file}'", file=name) from error
    except (OSError, MemoryError, Error):
        raise
    except pickle.UnpicklingError as error:
        if allow_pickle:
            raise Corrupt(f"{name} can't be unpickled: {error}", file=name) from error
        raise _refusal(name, str(error)) from error
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"{name} names code that this Python lacks: {error}", file=name) from error
    except Exception as error:
        raise Corrupt(f"torch can't read {name}: {error}", file=name) from error


def _refusal(name: str, told: str) -> UnsafeContent:
    """Returns the error for a file that the rules of torch refuse; `told` is the text of torch."""
    found = REFUSED_CLASS.search(told)
    reason = "" if found else f" ({_TERMINAL_CODE.sub('', told).splitlines()[0]})"
    holds = f" holds a {found[1]}, which" if found else ""
    return UnsafeContent(
        f"{name}{holds} can't be read without running code from the file. If you trust its author: "
        f"{line_that_allows()}, or set CAIRN_ALLOW_PICKLE=1 (docs/pickles.md){reason}",
        file=name,
        actual=found[1] if found else None,
    )


class _Records(NamedTuple):
    """The records of a whole archive."""

    are_stored: bool
    """Whether no record is compressed, so that the bytes in the file are the bytes of the records."""
    is_script: bool
    """Whether TorchScript wrote the archive."""


def _is_archive(file: Path) -> bool:
    """Returns whether torch reads the file as an archive."""
    with file.open("rb") as stream:
        return stream.read(len(_FIRST_BYTES)) == _FIRST_BYTES


def _check_records(file: Path, compare: bool) -> _Records:
    """Reads all records of an archive if `compare`, else only the directory of the archive. A record without a
    checksum (torch's ``set_crc32_options(False)``) passes.

    Raises Corrupt if a record does not match its checksum, or if the archive can't be read; Unsupported for encrypted
    records and for methods of compression that Python lacks.
    """
    name = file.name
    record = ""
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            for info in infos:
                record = info.filename
                if compare and (info.CRC or not info.file_size):  # 0: the writer computed none
                    _read(archive, info)
    except (RuntimeError, NotImplementedError) as error:
        raise Unsupported(f"record '{record}' of {name} can't be read: {error}", file=name) from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        place = f"record '{record}' of {name} does not match its checksum" if record else f"{name} is no whole archive"
        raise Corrupt(f"{place}: {error}", file=name) from error
    return _Records(
        are_stored=all(info.compress_type == zipfile.ZIP_STORED for info in infos),
        is_script=any(info.filename.partition("/")[2] == "constants.pkl" for info in infos),
    )


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    with archive.open(info) as stream:
        while stream.read(_READ_BYTES):
            pass
