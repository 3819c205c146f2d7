"""Fails when src/ includes more than src/LAYERS allows, or cli/ and python/ more than the public headers."""

import ast
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
SOURCES = {".h", ".cc"}
ENGINE = "_engine"  # the extension module, which any module of the package may import


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


def check_old_headers(root: Path) -> list[str]:
    """Returns problems with includes of the headers' old names, which are for other programs alone."""
    listed = root / "cmake" / "CairnOldHeaders.cmake"
    if not listed.exists():
        return []
    lines = re.findall(r'^ +"([a-z0-9_]+): ([a-z0-9_ ]+)"', listed.read_text(), re.MULTILINE)
    new_names = {f"cairn/{old}.h": f"cairn/{new}.h" for new, names in lines for old in names.split()}
    problems = []
    for top in ("include", "src", "cli", "python", "fuzz", "bench", "examples", "faults"):
        for path in sorted(p for p in (root / top).rglob("*") if p.suffix in SOURCES):
            for _, name in INCLUDE.findall(path.read_text()):
                if name in new_names:
                    problems.append(f"{path.relative_to(root)}: '{name}' is an old name of '{new_names[name]}'")
    return problems


def check_python(root: Path, layers: Layers) -> list[str]:
    """Problems with the imports of the modules under python/cairn, at any depth and also for type checkers only."""
    problems = list(layers.problems)
    used: dict[str, set[str]] = {unit: set() for unit in layers.uses}
    imports: dict[str, set[str]] = {}  # of modules, by the module that imports them
    package = root / "python" / "cairn"
    for path in sorted(package.rglob("*.py")):
        module = module_of(path.relative_to(package))
        unit = module.split(".")[0]
        imports[module] = imported_modules(path, package)
        if module in {"", "__main__"}:
            continue
        if unit not in layers.uses:
            problems.append(f"python/cairn: '{unit}' is not in LAYERS")
            continue
        for name in sorted(imports[module]):
            other = name.split(".")[0]
            used[unit].add(other)
            if other not in layers.uses[unit] | {unit, ENGINE}:
                problems.append(f"python/cairn: '{module}' may not import '{name or 'cairn'}'")
    for unit, granted in layers.uses.items():
        problems += [f"LAYERS: {unit} imports nothing of {name}" for name in sorted(granted - used[unit])]
    return problems + circles(imports)


def module_of(path: Path) -> str:
    """The module of a file, below the package: "" for the package itself."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, package: Path) -> set[str]:
    """The modules of the package that a file imports by statements, below the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == package.name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package.name:
            for alias in node.names:
                place = package.joinpath(*str(node.module).split(".")[1:], alias.name)
                is_module = place.with_suffix(".py").exists() or place.is_dir() or alias.name == ENGINE
                found.add(f"{node.module}.{alias.name}" if is_module else str(node.module))
    return {name.partition(".")[2] for name in found}


def circles(imports: dict[str, set[str]]) -> list[str]:
    """A problem for each circle of modules that import one another."""
    problems = []
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            problems.append("python/cairn: a circle of imports: " + " -> ".join([*path[path.index(module) :], module]))
        elif module not in done:
            for other in sorted(imports.get(module, ())):
                visit(other, [*path, module])
            done.add(module)

    for module in sorted(imports):
        visit(module, [])
    return problems


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    layers = Layers((root / "src" / "LAYERS").read_text())
    problems = check_src(root, layers) + check_outside(root, layers) + check_old_headers(root)
    units = Layers((root / "python" / "LAYERS").read_text())
    problems += check_python(root, units)
    print(
        "\n".join(problems) or f"layers ok: {len(layers.uses)} folders, {len(units.uses)} parts of the Python package"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
