"""Environments with a version of torch, for the Python of .venv or for another one.

torch comes from PyPI without its dependencies, a wheel for CUDA of 0.5 to 0.9 GB, and stubs take the place of CUDA's
libraries (cuda_stubs.py). For the Python of .venv the packages of .venv come after the environment's own; for another
Python the packages of python_packages.txt come from PyPI.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import newer_pythons
from cuda_stubs import make_stubs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(ROOT / "tools"))
from found_pythons import find_python  # noqa: E402

ENVIRONMENTS = ROOT / "build" / "compat"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def environment_of(version: str, release: str = "") -> Path:
    """Returns the Python of the environment with torch `version`. `release`: of Python; empty: as in .venv."""
    folder = ENVIRONMENTS / f"{f'python-{release}-' if release else ''}torch-{version}"
    python, done = folder / "bin/python", folder / "complete"
    if done.exists():
        _link_tool(folder)
        return python
    site = _environment_of_release(folder, version, release) if release else _environment_of_venv(folder, version)
    make_stubs(site / "torch/lib")
    _link_tool(folder)
    done.touch()
    return python


def _link_tool(folder: Path) -> None:
    """Puts the tool `cairn` beside the Python, where an installation of Cairn has it."""
    tool = folder / "bin/cairn"
    tool.unlink(missing_ok=True)
    tool.symlink_to(ROOT / "build/release/bin/cairn")


def python_of(release: str) -> Path:
    """Returns an interpreter of this machine, or a newer one."""
    found = find_python(release, "venv")
    if found is not None:
        return found
    if release in newer_pythons.RELEASES:
        return newer_pythons.newer_python(release, ROOT / "build/pythons")
    sys.exit(f"this machine has no Python {release}: neither in pyenv nor in PATH")


def _environment_of_venv(folder: Path, version: str) -> Path:
    venv.create(folder, with_pip=False, symlinks=True, clear=True)
    (site,) = folder.glob("lib/python*/site-packages")
    outer = sysconfig.get_path("purelib")
    (site / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n")
    command = [folder / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed", "--no-cache-dir"]
    older = ["numpy<2"] if version.startswith("2.2.") else []  # which that torch was built with
    # A constraint in the machine's configuration does not choose the version.
    variables = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    subprocess.run([*command, "--disable-pip-version-check", f"torch=={version}", *older], check=True, env=variables)
    return site


def _environment_of_release(folder: Path, version: str, release: str) -> Path:
    subprocess.run([python_of(release), "-m", "venv", "--without-pip", "--clear", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "cairn-dev.pth").write_text(f"{ROOT / 'build/release/python'}\n")
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [
        *(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-cache-dir"),
        *("--target", site, "--python-version", release, "--implementation", "cp", *platforms),
        *("--only-binary", ":all:", "-r", HERE / "python_packages.txt", f"torch=={version}"),
    ]
    subprocess.run(command, check=True, env={**os.environ, "PIP_CONSTRAINT": os.devnull})
    return site
