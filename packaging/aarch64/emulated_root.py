"""A Debian 12 of aarch64 in build/aarch64/root, whose programs run on this machine through qemu-user.

mmdebstrap unpacks the packages and configures none: the folder serves the cross compiler for headers and libraries too.
Programs run in namespaces of their own. There the kernel starts qemu for every program of aarch64, also for a program
that is started by such a program, as a trainer starts the writer process (binfmt_misc, of a user namespace since Linux
6.7). The machine's own settings stay as they are.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/aarch64"
FOLDER = BUILD / "root"
QEMU = "/usr/bin/qemu-aarch64-static"
PACKAGES = (
    *("libfmt-dev", "libcli11-dev", "libgtest-dev", "libpython3.11-dev"),
    *("bash", "coreutils", "python3.11-venv", "libgomp1"),
)
# An ELF file of 64 bits for aarch64. P: argv[0] stays. F: the kernel opens qemu now, because the root has none.
FORMAT = (
    r":aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:" + QEMU + ":FP"
)
# $1: the root, $2: the checkout, which has the same path inside, $3: the folder of the command, which follows.
ENTER = """
set -eu
root=$1 checkout=$2 folder=$3
shift 3
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf '%s' "$FORMAT" > /proc/sys/fs/binfmt_misc/register
mkdir -p "$root/$checkout" "$root/nothing"
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs none "$root/tmp"
mount --bind "$checkout" "$root/$checkout"
exec chroot "$root" /usr/bin/env -C "$folder" -i "$@"
"""


def make_root() -> None:
    """Makes the root, unless it is there with these packages."""
    done, wanted = FOLDER / "packages", " ".join(PACKAGES)
    if done.exists() and done.read_text() == wanted:
        return
    if FOLDER.exists():
        sys.exit(f"{FOLDER} is incomplete, or has other packages: remove it, and start again")
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    hooks = "/usr/share/mmdebstrap/hooks/merged-usr"
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=extract", "--architectures=arm64", f"--hook-dir={hooks}"),
            *(f"--include={','.join(PACKAGES)}", "bookworm", str(FOLDER)),
        ],
        check=True,
    )
    done.write_text(wanted)


def run_emulated(
    *command: str | Path, folder: Path, environment: Mapping[str, str] | None = None, timeout: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs a command in the root, in the directory `folder`, and returns its status and output."""
    settings = {"HOME": "/root", "PATH": "/usr/bin:/bin", "TMPDIR": "/tmp", **(environment or {})}
    words = [
        *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"),
        *("bash", "-c", ENTER, "enter", FOLDER, ROOT, folder),
        *(f"{name}={value}" for name, value in settings.items()),
        *command,
    ]
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "FORMAT": FORMAT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
