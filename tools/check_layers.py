"""Fails when src/ includes more than src/LAYERS allows, or cli/ and python/ more than the public headers."""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
SOURCES = {".h", ".cc"}


class Layers:
    """The contents of src/LAYERS: the folders' uses, the owners of public headers, the homes of outside libraries."""

    def __init__(self, text: str) -> None:
        self.uses: dict[str, set[str]] = {}
        self.owners: dict[str, str] = {}
        self.homes: dict[str, str] = {}
        self.problems: list[str] = []
        for raw in text.splitlines():
            line = raw.split("#")[0].strip()
            if ">" in line:
                prefix, home = (part.strip() for part in line.split(">"))
                self.homes[prefix] = home
            elif "=" in line:
                header, owner = (part.strip() for part in line.split("="))
                self.owners[header] = owner
            elif line:
                self._add_folder(*line.split(":"))

    def _add_folder(self, folder: str, rest: str) -> None:
        used = rest.split()
        self.problems += [
            f"LAYERS: {folder} uses {name}, not listed above it" for name in used if name not in self.uses
        ]
        self.uses[folder] = set(used)

    def owner(self, header: str) -> str:
        """Returns the folder that owns a project header."""
        if header.startswith("cairn/"):
            return self.owners.get(header, "core")
        return header.split("/", maxsplit=1)[0]


def check_src(root: Path, layers: Layers) -> list[str]:
    """Returns problems with the includes of the files under src/."""
    problems = list(layers.problems)
    used: dict[str, set[str]] = {folder: set() for folder in layers.uses}
    for path in sorted(p for p in (root / "src").rglob("*") if p.suffix in SOURCES):
        where = path.relative_to(root / "src")
        folder = where.parts[0]
        if folder not in layers.uses:
            problems.append(f"src/{where}: folder '{folder}' is not in LAYERS")
            continue
        is_test = path.name.endswith("_test.cc") or "testing" in where.parts
        for quote, name in INCLUDE.findall(path.read_text()):
            owner = layers.owner(name)
            is_ours = quote == '"' or name.startswith("cairn/")
            if is_ours and not is_test:
                used[folder].add(owner)
            if quote == '"' and owner not in layers.uses:
                problems.append(f"src/{where}: '{name}' is not named from src/")
            elif is_ours and owner not in layers.uses[folder] | {folder} and not is_test:
                problems.append(f"src/{where}: '{folder}' may not include '{name}'")
            if not is_test and name.endswith("_test.h"):
                problems.append(f"src/{where}: '{name}' is for tests")
            if not is_test and "testing/" in name:
                problems.append(f"src/{where}: '{name}' is for tests")
            for prefix, home in layers.homes.items():
                if name.startswith(prefix) and not str(where).startswith(home + "/"):
                    problems.append(f"src/{where}: {name} belongs to {home} alone")
    for folder, granted in layers.uses.items():
        problems += [f"LAYERS: {folder} includes nothing of {name}" for name in sorted(granted - used[folder])]
    return problems


def check_outside(root: Path, layers: Layers) -> list[str]:
    """Returns problems with the includes of the folders that may see only the public headers."""
    problems = []
    for top in ("include", "cli", "python", "examples"):
        for path in sorted(p for p in (root / top).rglob("*") if p.suffix in SOURCES):
            for quote, name in INCLUDE.findall(path.read_text()):
                first = name.split("/")[0]
                if quote == '"' and "/" in name and first in layers.uses:
                    problems.append(f"{path.relative_to(root)}: sees public headers only, not '{name}'")
                if top == "include" and quote == '"':
                    problems.append(f"{path.relative_to(root)}: a public header includes '{name}'")
    return problems


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    layers = Layers((root / "src" / "LAYERS").read_text())
    problems = check_src(root, layers) + check_outside(root, layers)
    print("\n".join(problems) or f"layers ok: {len(layers.uses)} folders")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
