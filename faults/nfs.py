"""Saves through two mounts of an NFS export, in a guest with its own server and clients. See docs/faults.md.

The guest is a QEMU machine with Debian's kernel and an initramfs built by this program. On the host the program
installs packages (qemu-system-x86, busybox-static) or fetches packages (the kernel, NFS's programs), which needs apt,
and root or sudo. The exit code is 0 only if every trial passed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FETCHED = (
    "nfs-kernel-server",
    "nfs-common",
    "rpcbind",
    "libtirpc3",
    "libtirpc-common",
    "libnfsidmap1",
    "libevent-core-2.1-7",
    "libwrap0",
)
PROGRAMS = ("sbin/mount.nfs", "sbin/rpcbind", "usr/sbin/exportfs", "usr/sbin/rpc.mountd", "usr/sbin/rpc.nfsd")
MODULES = ("virtio_pci", "virtio_blk", "ext4", "nfsd", "nfsv4")


def _output(*words: str, cwd: Path | None = None) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, cwd=cwd).stdout


def fetch(folder: Path) -> Path:
    """Returns the folder of the unpacked kernel and NFS programs."""
    unpacked = folder / "root"
    if unpacked.is_dir():
        return unpacked
    missing = [name for name in ("qemu-system-x86", "busybox-static") if not _is_installed(name)]
    if missing:
        sudo = [] if os.geteuid() == 0 else ["sudo"]
        subprocess.run([*sudo, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], check=True)
    kernel = re.findall(r"Depends: (linux-image-\S+)", _output("apt-cache", "depends", "linux-image-amd64"))[0]
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "-qq", kernel, *FETCHED], check=True, cwd=packages)
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(unpacked)], check=True)
    return unpacked


def _is_installed(package: str) -> bool:
    return subprocess.run(["dpkg-query", "-s", package], capture_output=True, check=False).returncode == 0


def modules_in_order(unpacked: Path) -> Iterator[Path]:
    """Yields the files of MODULES and of their dependencies, dependencies first."""
    files = {path.stem.replace("-", "_"): path for path in unpacked.glob("lib/modules/*/kernel/**/*.ko")}
    done: set[str] = set()

    def visit(name: str) -> Iterator[Path]:
        if name in done or name not in files:  # a missing module is built into the kernel
            return
        done.add(name)
        needed = re.search(rb"\0depends=([^\0]*)\0", b"\0" + files[name].read_bytes())
        for other in needed.group(1).decode().split(",") if needed else []:
            yield from visit(other.replace("-", "_"))
        yield files[name]

    for name in (*MODULES, "crc32c_generic"):
        yield from visit(name)


def copy_with_libraries(program: Path, target: Path, libraries: Path, unpacked: Path) -> None:
    """Copies a program, and its libraries into the loader's search path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, target)
    search = f"{unpacked}/usr/lib/x86_64-linux-gnu:{unpacked}/lib/x86_64-linux-gnu"
    for line in _output("env", f"LD_LIBRARY_PATH={search}", "ldd", str(program)).splitlines():
        if found := re.search(r"=> (/\S+)", line):
            shutil.copy2(found.group(1), libraries)
        elif found := re.match(r"\s*(/\S+ld-linux\S+)", line):
            loader = libraries.parent.parent / found.group(1)[1:]
            loader.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found.group(1), loader)


def make_initramfs(folder: Path, unpacked: Path, settings: str) -> Path:
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    libraries = tree / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (tree / "bin").mkdir()
    shutil.copy2("/bin/busybox", tree / "bin" / "busybox")
    shutil.copy2(ROOT / "faults" / "nfs_guest.sh", tree / "init")
    (tree / "init").chmod(0o755)
    (tree / "settings").write_text(settings)
    copy_with_libraries(ROOT / "build/release/bin/nfs_saves", tree / "bin/nfs_saves", libraries, unpacked)
    for program in PROGRAMS:
        copy_with_libraries(unpacked / program, tree / "sbin" / Path(program).name, libraries, unpacked)
    (tree / "etc").mkdir()
    shutil.copy2(unpacked / "etc" / "netconfig", tree / "etc")
    (tree / "modules").mkdir()
    order = list(modules_in_order(unpacked))
    for module in order:
        shutil.copy2(module, tree / "modules")
    (tree / "modules" / "order").write_text("\n".join(module.name for module in order))
    image = folder / "initramfs"
    with image.open("wb") as out:
        names = "\n".join(str(path.relative_to(tree)) for path in [tree, *tree.rglob("*")])
        subprocess.run(
            ["/bin/busybox", "cpio", "-o", "-H", "newc"], input=names.encode(), stdout=out, cwd=tree, check=True
        )
    return image


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="saves by each of two clients (default: %(default)s)")
    parser.add_argument("--versions", default="4.2 4.0", help="of NFS (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/nfs", help="for what is fetched and made")
    parser.add_argument("--accelerator", default="tcg", help="of QEMU, tcg or kvm (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=500, help="for the guest, in seconds (default: %(default)s)")
    arguments = parser.parse_args()
    unpacked = fetch(arguments.folder)
    image = make_initramfs(arguments.folder, unpacked, f"{arguments.count} {arguments.versions}\n")
    disk = arguments.folder / "disk"
    disk.unlink(missing_ok=True)
    with disk.open("wb") as file:
        file.truncate(1 << 28)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", str(disk)], check=True)
    kernel = next(unpacked.glob("boot/vmlinuz-*"))
    words = ["qemu-system-x86_64", "-accel", arguments.accelerator, "-m", "1024", "-nographic", "-no-reboot"]
    words += ["-kernel", str(kernel), "-initrd", str(image), "-append", "console=ttyS0 panic=-1 quiet loglevel=3"]
    words += ["-drive", f"file={disk},if=virtio,format=raw,cache=unsafe", "-nic", "none"]
    log = arguments.folder / "log"
    with log.open("wb") as out:
        guest = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out)
        try:
            guest.wait(arguments.timeout)
        except subprocess.TimeoutExpired:
            guest.kill()
            guest.wait()
    text = log.read_text(errors="replace").replace("\r", "")
    print(text)
    return 0 if "\nguest: 0\n" in text else 1


if __name__ == "__main__":
    sys.exit(main())
