"""Files and payloads of ``torch.save``, read by the rules of ``torch.load(weights_only=True)`` where these hold.

Before torch 2.6 a file can run code in spite of these rules (CVE-2025-32434). With these versions Cairn never relies on
the rules: data that only torch can read needs the caller's consent.
"""

import pickle
import re
import stat
from pathlib import Path
from typing import Any

import torch
from torch.torch_version import TorchVersion

from cairn._settings.consent import line_that_allows
from cairn._state.archive_records import check_records, is_archive
from cairn.errors import Corrupt, Error, NotFound, UnsafeContent, Unsupported

_HOLD_SINCE = (2, 6)
_REFUSED_CLASS = re.compile(r"GLOBAL (\S+) was not an allowed global")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")


def rules_hold() -> bool:
    """Returns whether ``torch.load(weights_only=True)`` of the installed torch runs no code from a file."""
    return bool(TorchVersion(torch.__version__) >= _HOLD_SINCE)  # type: ignore[operator]


def check_rules_hold(what: str, key: str | None = None, file: str | None = None) -> None:
    """Raises UnsafeContent, about `what`, if ``torch.load(weights_only=True)`` of the installed torch may run code."""
    if not rules_hold():
        raise UnsafeContent(
            f"only torch can read {what}, and torch {torch.__version__} may run code from it in spite of "
            f"weights_only=True (CVE-2025-32434): upgrade torch to 2.6; or, if you trust its author: "
            f"{line_that_allows()}",
            key=key,
            file=file,
        )


def refused_class(error: BaseException) -> str | None:
    """Returns the class that torch's rules refused with `error`; None for another error."""
    if not isinstance(error, pickle.UnpicklingError):
        return None
    found = _REFUSED_CLASS.search(str(error))
    return found[1] if found else "class or function that torch's rules refuse"


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
        if is_archive(file):
            records = check_records(file, check)
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
    found = _REFUSED_CLASS.search(told)
    reason = "" if found else f" ({_TERMINAL_CODE.sub('', told).splitlines()[0]})"
    holds = f" holds a {found[1]}, which" if found else ""
    return UnsafeContent(
        f"{name}{holds} can't be read without running code from the file. If you trust its author: "
        f"{line_that_allows()}, or set CAIRN_ALLOW_PICKLE=1 (docs/pickles.md){reason}",
        file=name,
        actual=found[1] if found else None,
    )
