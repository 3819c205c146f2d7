"""The records of a zip archive, compared with the checksums that the archive has of them.

For archives that only torch reads: torch compares no checksum of a file that it maps.
"""

import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from cairn.errors import Corrupt, Unsupported

_READ_BYTES = 1 << 20
_FIRST_BYTES = b"PK\x03\x04"


class ArchiveRecords(NamedTuple):
    """The records of a whole archive."""

    are_stored: bool
    """Whether no record is compressed, so that the bytes in the file are the bytes of the records."""
    is_script: bool
    """Whether TorchScript wrote the archive."""


def is_archive(file: Path) -> bool:
    """Returns whether torch reads the file as an archive."""
    with file.open("rb") as stream:
        return stream.read(len(_FIRST_BYTES)) == _FIRST_BYTES


def check_records(file: Path, compare: bool) -> ArchiveRecords:
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
    return ArchiveRecords(
        are_stored=all(info.compress_type == zipfile.ZIP_STORED for info in infos),
        is_script=any(info.filename.partition("/")[2] == "constants.pkl" for info in infos),
    )


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    with archive.open(info) as stream:
        while stream.read(_READ_BYTES):
            pass
