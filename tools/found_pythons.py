"""The Pythons of this machine."""

import shutil
import subprocess
from pathlib import Path


def find_python(release: str, modules: str) -> Path | None:
    """Returns an interpreter of pyenv or PATH, as 3.12, that imports the `modules`; None: there is none."""
    candidates = [
        *sorted(Path.home().glob(f".pyenv/versions/{release}.*/bin/python")),
        shutil.which(f"python{release}"),
    ]
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "-c", f"import {modules}"], check=False).returncode == 0:
            return Path(candidate)
    return None
