"""Packs what a machine with a GPU needs to test and measure Cairn into build/gpu: `./dev gpu`.

The folder holds the wheel of dist/, the wheel of nanobind-backend for Python 3.12, the tests python/tests/test_gpu*.py,
and bench/gpu_bench.py. The machine needs a CUDA driver, Python 3.12, torch 2.11 or later, NumPy and pytest, but neither
a compiler nor a network. `run.sh` there runs the tests, and then the benchmark with the arguments of `run.sh`.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/gpu"
PYTHON_VERSION = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

RUN = """#!/usr/bin/env bash
# Runs Cairn's tests for GPUs, and then the benchmark with the given arguments. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=${PYTHON:-python3}
rm -rf site
"$python" -m pip install -q --no-index --no-deps --no-compile --target site wheels/*.whl
export PYTHONPATH="$PWD/site" PYTHONUNBUFFERED=1
"$python" -m pytest -q -p no:cacheprovider tests
"$python" gpu_bench.py "$@"
"""


def download(requirement: str, folder: Path) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    only = ["--no-deps", "--only-binary=:all:", "--python-version", PYTHON_VERSION, "--implementation", "cp"]
    subprocess.run([*pip, *only, *platforms, "-d", str(folder), requirement], check=True)


def main() -> None:
    wheels = list((ROOT / "dist").glob("cairn_checkpoint-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"expected one wheel in dist/, found {len(wheels)}")
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name in ("wheels", "tests"):
        (FOLDER / name).mkdir(parents=True)
    shutil.copy(wheels[0], FOLDER / "wheels")
    download("nanobind-backend>=1.0,<2", FOLDER / "wheels")
    for test in [*(ROOT / "python/tests").glob("test_gpu*.py"), ROOT / "python/tests/conftest.py"]:
        shutil.copy(test, FOLDER / "tests")
    shutil.copy(ROOT / "bench/gpu_bench.py", FOLDER)
    script = FOLDER / "run.sh"
    script.write_text(RUN)
    script.chmod(0o755)
    print(f"packed {FOLDER.relative_to(ROOT)}: copy the folder to a machine with a GPU, and run run.sh there")


if __name__ == "__main__":
    main()
