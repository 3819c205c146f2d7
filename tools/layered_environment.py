"""Environments of packages on top of .venv: the packages of .venv, torch's among them, are shared."""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path


def layered_environment(folder: Path, lists: Mapping[Path, Sequence[str]]) -> Path:
    """Returns the Python of the environment in `folder`. Makes the environment anew if a list of packages has changed.

    `lists` has pip's further options for each list of packages. A list may include lists of its folder by ``-r``.
    """
    listed = "".join(_listed(path) for path in lists)
    fingerprint = hashlib.sha256((listed + sys.prefix).encode()).hexdigest()
    python = folder / "bin" / "python"
    if (folder / "fingerprint").exists() and (folder / "fingerprint").read_text() == fingerprint:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    # The packages of .venv come after the environment's own packages, and with .venv its cairn-dev.pth, which names the
    # build.
    outer = sysconfig.get_path("purelib")
    (site / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n")
    (folder / "constraints.txt").write_text(f"torch=={version('torch').partition('+')[0]}\n")
    for packages, options in lists.items():
        command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *options, "-r", packages]
        subprocess.run([*command, "-c", folder / "constraints.txt"], check=True)
    (folder / "fingerprint").write_text(fingerprint)
    return python


def _listed(packages: Path) -> str:
    """Returns a list of packages, with the lists named by ``-r`` included."""
    lines = packages.read_text().splitlines()
    return "".join(_listed(packages.parent / line[3:]) if line.startswith("-r ") else f"{line}\n" for line in lines)
