"""Tries clients of torch.distributed.checkpoint that are too large for the test suite, each with its own packages.

usage: ./dev clients [NAME...]      (all, without a name; docs/client-trials.md has the results)

Torchrun runs `NAME_job.py` with two ranks, on CPUs over gloo. The job plays `trial.run`, in three jobs of torchrun:
side by side with stock torch, killed, and started anew. docs/measurements/clients.json has the newest results.
`NAME.txt` lists the client's packages of PyPI beyond tools/requirements.txt. `NAME_alone.txt` lists packages to install
without dependencies, which could include a different torch. The packages go to build/clients/NAME, an environment on
top of .venv: the environments share the torch of .venv. `NAME_unpacked.txt` lists wheels for Python 3.12, whose Python
modules run on earlier versions too: they are unpacked into build/clients/NAME.unpacked, without their dependencies.
pytest runs the tests of `NAME_runs.py` after the jobs.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(ROOT / "tools"))
from layered_environment import layered_environment  # noqa: E402

ENVIRONMENTS = ROOT / "build" / "clients"
RESULTS = ROOT / "docs" / "measurements" / "clients.json"
RANKS = 2
HANG_SECONDS = 1800  # for a job: ranks that wait for each other never end, and a busy machine is slow


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


class Trial:
    """The jobs of torchrun of one client, in its environment, with a log and a folder of their own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._python = environment_of(name)
        self.folder = ENVIRONMENTS / f"{name}.trial"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        own = (HERE, ROOT / "python" / "tests" / "clients", ROOT / "python" / "tests", ROOT / "build/release/python")
        self._settings = {
            "PYTHONPATH": os.pathsep.join(map(str, (*unpacked_wheels(name), *own))),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def _run(self, *command: str | Path, must_succeed: bool = True, **options: Any) -> str:
        """Runs a command, and returns what it has printed, which goes to the log."""
        log = log_of(self._name)
        before = log.stat().st_size if log.exists() else 0
        with log.open("a") as output:
            subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=must_succeed, **options)
        return log.read_bytes()[before:].decode(errors="replace")

    def job(self, *part: str, must_succeed: bool = True) -> str:
        """Runs a part of the trial: side by side with stock torch (no word), ``killed`` or ``resumed``."""
        launcher = [self._python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        program = HERE / f"{self._name}_job.py"
        env = {**os.environ, **self._settings}
        return self._run(
            *launcher, program, self.folder, *part, must_succeed=must_succeed, env=env, timeout=HANG_SECONDS
        )

    def be_killed(self) -> None:
        """Runs the job that is killed. Raises SubprocessError unless SIGKILL has ended every rank."""
        printed = self.job("killed", must_succeed=False)
        notes = [self.folder / f"killed-{rank}.json" for rank in range(RANKS)]
        if not all(note.exists() for note in notes) or "SIGKILL" not in printed:
            raise subprocess.SubprocessError("the job that was to be killed ended in another way")
        for note in notes:  # a rank leads a session; its children are left
            with contextlib.suppress(ProcessLookupError):
                os.killpg(json.loads(note.read_text())["process"], signal.SIGKILL)

    def run_tests(self) -> None:
        tests = HERE / f"{self._name}_runs.py"
        if tests.exists():
            self._run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, cwd=ROOT)

    def found(self, part: str) -> dict[str, Any]:
        """Rank 0's findings."""
        return json.loads((self.folder / f"{part}-0.json").read_text())


def log_of(name: str) -> Path:
    return ENVIRONMENTS / f"{name}.trial" / "log.txt"


def pinned_packages(name: str) -> dict[str, str]:
    """The packages that the client's lists name with a version."""
    lines = [line for path in HERE.glob("*.txt") if _is_list_of(path, name) for line in path.read_text().splitlines()]
    return dict(line.split("==") for line in sorted(lines) if "==" in line and line[0] != "#")


def _is_list_of(path: Path, name: str) -> bool:
    return path.stem in (name, f"{name}_alone", f"{name}_unpacked")


def try_client(name: str) -> dict[str, Any]:
    """Returns rank 0's findings. Raises SubprocessError if the trial failed."""
    trial = Trial(name)
    trial.job()
    found = trial.found("trial")
    if "result" not in found:  # of a trial without training
        trial.be_killed()
        trial.job("resumed")
        found |= trial.found("resumed")
    trial.run_tests()
    return found


def describe(name: str, found: dict[str, Any]) -> str:
    """The result of a client in a line."""
    packages = ", ".join(f"{package} {version}" for package, version in found["packages"].items())
    seconds = ", ".join(f"{what} {value:.2f} s" for what, value in found["seconds"].items())
    calls, alarms = found["engine calls"], found["saves with the torn-snapshot alarm"]
    result = found.get("result")
    if result is None:
        resumed = f"killed and resumed after round {found['resumed after round']} of {found['rounds']}"
        result = f"equal to stock bit by bit, {resumed}"
    return f"{name}: ok, {packages}, {result}, engine calls {calls}, {seconds}, no alarm in {alarms} saves"


def keep(name: str, result: dict[str, Any]) -> None:
    """Replaces the result of a client in the file of results."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    commit = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    of_all = {
        "date": str(date.today()),
        "commit": subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip(),
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    results[name] = of_all | result
    RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev clients", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    chosen = parser.parse_args().names or names()
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        parser.error(f"no client {', '.join(unknown)}; there are {', '.join(names())}")
    failed = 0
    for name in chosen:
        try:
            found = try_client(name)
        except (subprocess.SubprocessError, OSError) as error:
            failed += 1
            log = log_of(name)
            tail = "".join(log.read_text().splitlines(keepends=True)[-30:]) if log.exists() else ""
            print(f"{name}: FAILED: {error}\n{tail}see {log}", flush=True)
            keep(name, {"passed": False, "packages": pinned_packages(name)})
            continue
        found["packages"] |= pinned_packages(name)
        print(describe(name, found), flush=True)
        keep(name, {"passed": True, **found})
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
