"""Runs torch's own tests of torch.distributed.checkpoint with stock torch, and with cairn.install() in each process.

usage: ./dev torch-tests [--suite SUITE | --source FOLDER] [--keep] [FILE...]

1. apt fetches the source package of pytorch from Debian (`--suite`, trixie by default, which has torch 2.6), unless
   `--source` names a checkout of pytorch. Its test/distributed/checkpoint is copied to build/torch-tests/SUITE/tests.
   The files are torch's; this repository keeps none of the files.
2. The copy is changed to run on CPUs over gloo: names of devices and backends in the text, and the rest when Python
   starts (site/adaptation.py). Both runs get equal changes.
3. pytest runs each test file, once with stock torch and once with Cairn. A test counts as lost if the test passes with
   stock torch and not with Cairn. Each process of a run with Cairn reports the number of its calls that reached the
   engine.
4. The reports stay beside the tests, in the folders stock and cairn. With `--keep` a file that has a report there
   is not run again: an interrupted run continues.

Prints both counts, the calls that reached Cairn's engine, and each lost test with the first line of its error. Exits
with 1 if a lost test is not in known.txt, or if no call reached the engine.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from paired_tests import PairedTests, known_tests

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "torch-tests"
FOLDER = "test/distributed/checkpoint"
PACKAGES = ["expecttest==0.3.0", "zstandard==0.25.0"]  # imported by torch's tests
DEVICES = {"e2e/test_fsdp_ep.py": 8}  # the device count told to a file's tests, equal to their ranks; otherwise 4

# Step 2, in this order: a pattern of devices or backends in a test, and the replacement.
REWRITES = [
    (r"cpu:gloo,cuda:nccl", "gloo"),
    (r"(rank:\{?\w+\}?)/cuda:\{?\w+\}?", r"\1/cpu"),
    (r"device=(?:dist\.get_rank\(\)|self\.rank\b)", 'device="cpu"'),
    (r'f"cuda:\{[^}]*\}"', '"cpu"'),
    (r'"cuda(:\d)?"', '"cpu"'),
    (r'"nccl"', '"gloo"'),
]


def variables_of(file: Path, mode: str) -> dict[str, str]:
    """Returns the environment of a run of `file`."""
    return {
        "TORCH_TESTS_MODE": mode,
        "PYTHONPATH": os.pathsep.join([str(HERE / "site"), str(BUILD / "packages")]),
        "TORCH_TESTS_DEVICES": str(DEVICES.get(str(file), 4)),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def fetch(suite: str) -> Path:
    """Step 1, by apt with separate package lists: the machine's lists stay unchanged.

    Returns the archive of the sources.
    """
    folder = BUILD / suite
    found = sorted(folder.glob("pytorch_*.orig.tar.*"))
    if found:
        return found[-1]
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources.list").write_text(f"deb-src [signed-by={keys}] http://deb.debian.org/debian {suite} main\n")
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "source", "--download-only", "pytorch"], check=True, cwd=folder)
    return sorted(folder.glob("pytorch_*.orig.tar.*"))[-1]


def unpack(source: Path, into: Path) -> None:
    """Copies the folder of tests from an archive or a checkout, and rewrites the tests."""
    shutil.rmtree(into, ignore_errors=True)
    if source.is_dir():
        shutil.copytree(source / FOLDER, into)
    else:
        with tarfile.open(source) as archive:
            for member in archive:
                _, _, path = member.name.partition("/")
                if member.isfile() and path.startswith(f"{FOLDER}/") and path.endswith(".py"):
                    target = into / path.removeprefix(f"{FOLDER}/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(member)
                    assert content is not None
                    target.write_bytes(content.read())
    for path in into.rglob("test_*.py"):
        text = path.read_text()
        for pattern, replacement in REWRITES:
            text = re.sub(pattern, replacement, text)
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev torch-tests", description=__doc__.split("\n")[0])
    parser.add_argument("--suite", default="trixie", help="of Debian (default: trixie)")
    parser.add_argument("--source", type=Path, help="a checkout of pytorch instead")
    parser.add_argument("--keep", action="store_true", help="do not run again what has a report of an earlier run")
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"below {FOLDER}; all of them by default")
    asked = parser.parse_args()
    source = asked.source or fetch(asked.suite)
    folder = BUILD / ("source" if asked.source else asked.suite)
    tests = folder / "tests"
    unpack(source, tests)
    packages = BUILD / "packages"
    if not packages.exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), *PACKAGES]
        subprocess.run(install, check=True)
    there = sorted(path.relative_to(tests) for path in tests.rglob("test_*.py"))
    asked_files = [file for file in there if not asked.files or str(file) in asked.files]
    runs = PairedTests(folder, variables_of, keep=asked.keep)
    return runs.report(asked_files, source.name, known_tests(HERE / "known.txt"))


if __name__ == "__main__":
    sys.exit(main())
