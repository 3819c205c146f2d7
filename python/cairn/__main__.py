"""``python -m cairn``: runs the tool ``cairn`` that was installed with this package."""

import os
import sys
import sysconfig
from pathlib import Path

_UNREADABLE = 3  # the tool's exit status when the system refuses an operation


def _places() -> list[Path]:
    """Returns the possible places of the tool, the likeliest first: installers keep no common record of the place."""
    package = Path(__file__).parent
    folders = [package.parents[1] / "bin"]  # the build tree
    schemes = [sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")]
    folders += [Path(sysconfig.get_path("scripts", scheme)) for scheme in schemes]
    folders.append(package.parent / "bin")  # pip install --target
    return [folder / "cairn" for folder in folders]


def main() -> int:
    """Replaces this process by the tool, with the arguments of this process. Returns only if the tool is not
    installed."""
    places = _places()
    for tool in places:
        if tool.is_file() and os.access(tool, os.X_OK):
            os.execv(tool, ["cairn", *sys.argv[1:]])
    looked = ", ".join(f"'{place}'" for place in dict.fromkeys(places))
    print(f"cairn: the tool is not installed with the package; looked at {looked}", file=sys.stderr)
    return _UNREADABLE


if __name__ == "__main__":
    sys.exit(main())
