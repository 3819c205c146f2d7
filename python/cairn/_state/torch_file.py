"""Files and payloads of ``torch.save``, read by the rules of ``torch.load(weights_only=True)`` where these hold.

Before torch 2.6 a file can run code in spite of these rules (CVE-2025-32434). With these versions Cairn never relies on
the rules: data that only torch can read needs the caller's consent.
"""

import pickle
import stat
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.torch_version import TorchVersion

from cairn._settings.consent import line_that_allows
from cairn.errors import Corrupt, NotFound, UnsafeContent

_HOLD_SINCE = (2, 6)


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


def load_torch_file(file: Path, allow_pickle: bool) -> Any:
    """Returns the content of a file of ``torch.save``: on the CPU, and memory-mapped where the file's format allows.

    Raises UnsafeContent for a file that can't be read without running code, unless `allow_pickle`, and for a pipe or a
    device; Corrupt; NotFound.
    """
    name = file.name
    if not allow_pickle:
        check_rules_hold(name, file=name)
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for the pipe's writer
            raise UnsafeContent(f"'{file}' is not a regular file", file=name)
        is_archive = zipfile.is_zipfile(file)
        return torch.load(file, map_location="cpu", weights_only=not allow_pickle, mmap=is_archive or None)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file '{file}'", file=name) from error
    except (OSError, MemoryError, UnsafeContent):
        raise
    except pickle.UnpicklingError as error:
        if allow_pickle:
            raise Corrupt(f"{name} can't be unpickled: {error}", file=name) from error
        raise UnsafeContent(
            f"{name} can't be read without running code from it; if you trust it, pass allow_pickle=True or set "
            f"CAIRN_ALLOW_PICKLE=1 ({error})",
            file=name,
        ) from error
    except Exception as error:
        raise Corrupt(f"torch can't read {name}: {error}", file=name) from error
