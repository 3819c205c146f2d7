"""Shared libraries in place of CUDA's, so that torch's CUDA wheels import on a machine without CUDA.

PyPI has no CPU wheel of torch for Linux on x86-64. torch's libraries name CUDA's as needed, and the dynamic linker ends
an import where a needed library, a version of a symbol, or a symbol that is bound at once is missing. A stub defines
all symbols that torch's libraries ask of the missing library. Each is the same function: it returns 100, which is
cudaErrorNoDevice, so torch finds no GPU.
"""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

NO_DEVICE = 100  # cudaErrorNoDevice
_SYMBOL = re.compile(r"^ +\d+: [0-9a-f]+ +\S+ +\w+ +(\w+) +\w+ +(\w+) (\S+)", re.MULTILINE)
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_VERSION_FILE = re.compile(r"Version: 1  File: (\S+)")
_VERSION_NAME = re.compile(r"Name: (\S+)  Flags")


class Wanted(NamedTuple):
    """A symbol that a library leaves to others; `version` is empty where the library asks for none."""

    symbol: str
    version: str


def make_stubs(folder: Path) -> list[str]:
    """Writes stubs into `folder`, torch's directory of libraries, for the libraries that are missing. Returns them."""
    libraries = sorted(folder.glob("*.so*"))
    needed: set[str] = set()
    defined: set[str] = set()
    wanted: set[Wanted] = set()
    home: dict[str, str] = {}  # the library that a version belongs to
    for library in libraries:
        needed |= set(_NEEDED.findall(_readelf("-d", library)))
        home |= _homes_of_versions(library)
        for binding, section, name in _SYMBOL.findall(_readelf("--dyn-syms", library)):
            symbol, _, version = name.partition("@")
            if section != "UND":
                defined.add(symbol)
            elif binding == "GLOBAL":
                wanted.add(Wanted(symbol, version.strip("@")))
    found = {library.name for library in libraries} | _libraries_of_system()
    missing = sorted(needed - found)
    if not missing:
        return []
    by_library: dict[str, list[Wanted]] = defaultdict(list)
    for each in sorted(wanted):
        library = home.get(each.version, missing[0])
        if library in missing and (each.version or each.symbol not in defined):
            by_library[library].append(each)
    for library in missing:
        _build(folder / library, by_library[library])
    return missing


def _homes_of_versions(library: Path) -> dict[str, str]:
    homes = {}
    file = ""
    for line in _readelf("-V", library).splitlines():
        if found := _VERSION_FILE.search(line):
            file = found[1]
        elif file and (found := _VERSION_NAME.search(line)):
            homes[found[1]] = file
    return homes


def _libraries_of_system() -> set[str]:
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()[1:] if line.strip()} | {"ld-linux-x86-64.so.2"}


def _build(stub: Path, symbols: Iterable[Wanted]) -> None:
    by_version: dict[str, list[str]] = defaultdict(list)
    for each in symbols:
        by_version[each.version].append(each.symbol)
    assembly = [".text", "no_device:", f"  mov ${NO_DEVICE}, %eax", "  ret", '.section .note.GNU-stack,"",@progbits']
    script = []
    for version, names in sorted(by_version.items()):
        for name in names:
            assembly += [f".globl {name}", f".type {name}, @function", f".set {name}, no_device"]
        # Symbols without a version and symbols with one cannot be in one script; "*" leaves them out of any version.
        if version:
            script.append(f"{version} {{ global: {'; '.join(names)}; }};\n")
    source, map_file = stub.with_suffix(".stub.s"), stub.with_suffix(".stub.map")
    source.write_text("\n".join(assembly) + "\n")
    map_file.write_text("".join(script))
    options = [f"-Wl,--version-script={map_file}"] if script else []
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{stub.name}", *options, "-o", stub, source]
    subprocess.run([str(word) for word in command], check=True)
    source.unlink()
    map_file.unlink()


def _readelf(option: str, library: Path) -> str:
    command = ["readelf", "-W", option, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
