"""Tries clients of torch.distributed.checkpoint that are too large for the test suite, each with its own packages.

usage: ./dev clients [NAME...]      (all, without a name; docs/client-trials.md has the results)

Torchrun runs `NAME_job.py` with two ranks, on CPUs over gloo; the job plays `trial.run`. `NAME.txt` lists the client's
packages of PyPI beyond tools/requirements.txt. `NAME_alone.txt` lists packages to install without dependencies, which
could include a different torch. The packages go to build/clients/NAME, an environment on top of .venv: the environments
share the torch of .venv. `NAME_unpacked.txt` lists wheels for Python 3.12, whose Python modules run on earlier versions
too: they are unpacked into build/clients/NAME.unpacked, without their dependencies. pytest runs the tests of
`NAME_runs.py` after the job.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(ROOT / "tools"))
from layered_environment import layered_environment  # noqa: E402

ENVIRONMENTS = ROOT / "build" / "clients"
RANKS = 2
HANG_SECONDS = 600  # ranks that wait for each other never end


def names() -> list[str]:
    return sorted(path.stem.removesuffix("_job") for path in HERE.glob("*_job.py"))


def environment_of(name: str) -> Path:
    """Returns the Python of the client's environment. Makes the environment anew if the list of packages changed."""
    lists = {
        path: [] if path.stem == name else ["--no-deps"] for path in (HERE / f"{name}.txt", HERE / f"{name}_alone.txt")
    }
    return layered_environment(ENVIRONMENTS / name, {path: lists[path] for path in lists if path.exists()})


def unpacked_wheels(name: str) -> list[Path]:
    """Returns the folder of the client's unpacked wheels, if it lists wheels. Unpacks anew if the list changed."""
    packages = HERE / f"{name}_unpacked.txt"
    if not packages.exists():
        return []
    folder = ENVIRONMENTS / f"{name}.unpacked"
    kept = folder / packages.name
    if kept.exists() and kept.read_text() == packages.read_text():
        return [folder]
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as wheels:
        platforms = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (17, 24, 28, 31, 39)]
        kind = ["--python-version=3.12", *platforms, "--only-binary=:all:", "--no-deps"]
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", *kind]
        subprocess.run([*command, "-d", wheels, "-r", packages], check=True)
        for wheel in Path(wheels).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(folder)
    shutil.copy(packages, kept)
    return [folder]


def try_client(name: str) -> dict[str, Any]:
    """Returns rank 0's findings. Raises CalledProcessError or TimeoutExpired if the trial failed."""
    python = environment_of(name)
    folder = ENVIRONMENTS / f"{name}.trial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = (*unpacked_wheels(name), HERE, ROOT / "python" / "tests" / "clients", ROOT / "python" / "tests")
    settings = {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    launcher = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    log = folder / "log.txt"
    with log.open("w") as output:
        subprocess.run(
            [*launcher, HERE / f"{name}_job.py", folder],
            env={**os.environ, **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=HANG_SECONDS,
            check=True,
        )
        tests = HERE / f"{name}_runs.py"
        if tests.exists():
            pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
            subprocess.run(pytest, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=True)
    return json.loads((folder / "rank-0.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev clients", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    chosen = parser.parse_args().names or names()
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        parser.error(f"no client {', '.join(unknown)}; there are {', '.join(names())}")
    failed = []
    for name in chosen:
        try:
            found = try_client(name)
        except (subprocess.SubprocessError, OSError) as error:
            failed.append(name)
            log = ENVIRONMENTS / f"{name}.trial" / "log.txt"
            tail = "".join(log.read_text().splitlines(keepends=True)[-30:]) if log.exists() else ""
            print(f"{name}: FAILED: {error}\n{tail}see {log}", flush=True)
            continue
        seconds = ", ".join(f"{what} {value:.2f} s" for what, value in found["seconds"].items())
        calls, alarms = found["engine calls"], found["saves with the torn-snapshot alarm"]
        print(
            f"{name}: ok, {date.today()}, {found['client']}, "
            f"{found.get('result', 'equal to stock bit by bit')}, engine calls {calls}, "
            f"{seconds}, no alarm in {alarms} saves that staged asynchronously",
            flush=True,
        )
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
