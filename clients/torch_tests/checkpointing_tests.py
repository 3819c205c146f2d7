"""Runs the tests of Meta's torch_checkpointing with its own code, and with cairn.torch_checkpointing.install().

usage: ./dev torch-tests checkpointing [--files theirs|ours] [--keep] [FILE...]

1. pip fetches the source distribution of the version in .venv. Its tests go to build/torch-tests/checkpointing. The
   files are the package's; this repository keeps none of the files.
2. pytest runs each test file twice (paired_tests.py), with temporary files in memory: the package's writes with
   O_DIRECT fail on ext4.

Exits with 1 if a lost test is not in checkpointing_known.txt, or if no call reached the engine.
"""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from paired_tests import PairedTests, known_tests

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "torch-tests" / "checkpointing"
NAME = "torch_checkpointing"
PACKAGES = ["expecttest==0.3.0"]  # imported by the tests


def fetch() -> str:
    """Step 1. Returns the name and version."""
    release = f"{NAME}-{importlib.metadata.version(NAME)}"
    archive = BUILD / f"{release}.tar.gz"
    if not archive.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        get = ["download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", str(BUILD)]
        subprocess.run([*pip, *get, release.replace("-", "==")], check=True)
        subprocess.run([*pip, "install", "--no-deps", "--target", str(BUILD / "packages"), *PACKAGES], check=True)
    tests = BUILD / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir()
    (tests / "pytest.ini").write_text("[pytest]\n")  # in place of this repository's settings
    with tarfile.open(archive) as files:
        for member in files:
            _, _, path = member.name.partition("/")
            content = files.extractfile(member) if path.startswith("tests/") and path.endswith(".py") else None
            if content is not None:
                target = tests / path.removeprefix("tests/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
    return release


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev torch-tests checkpointing", description=__doc__.split("\n")[0])
    parser.add_argument("--files", default="theirs", choices=["theirs", "ours"], help="the kind of files of Cairn")
    parser.add_argument("--keep", action="store_true", help="do not run again what has a report of an earlier run")
    parser.add_argument("names", nargs="*", metavar="FILE", help="all of them by default")
    asked = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    release = fetch()
    memory = Path(tempfile.mkdtemp(prefix="cairn-checkpointing-tests-", dir="/dev/shm"))

    def variables(_: Path, mode: str) -> dict[str, str]:
        return {
            "CHECKPOINTING_TESTS_FILES": asked.files if mode == "cairn" else "",
            "PYTHONPATH": os.pathsep.join([str(HERE / "checkpointing_site"), str(BUILD / "packages")]),
            "TMPDIR": str(memory),
            "OMP_NUM_THREADS": "1",
        }

    files = sorted(path.relative_to(BUILD / "tests") for path in (BUILD / "tests").rglob("test_*.py"))
    try:
        runs = PairedTests(BUILD, variables, keep=asked.keep)
        wanted = [file for file in files if not asked.names or str(file) in asked.names]
        return runs.report(wanted, f"{release}, files={asked.files}", known_tests(HERE / "checkpointing_known.txt"))
    finally:
        shutil.rmtree(memory)


if __name__ == "__main__":
    sys.exit(main())
