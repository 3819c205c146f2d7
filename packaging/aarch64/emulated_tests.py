"""Tests the wheel for aarch64, and the C++ code, through qemu-user: `./dev aarch64 test [python | cpp]`.

1. The wheel is installed by pip into an environment of the emulated Python 3.11, with torch for aarch64.
2. installed_use.py works there as in `./dev wheel --test`: it reads a checkpoint that stock torch saved on this
   machine, saves through the writer process, and loads.
3. exchanged_state.py saves on this machine and is checked on aarch64, and the other way round, bit by bit.
4. The C++ test programs run. Those of left_out.txt do not, each for a reason.

Prints a line for each step; docs/installing.md has the lines of the last run.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cross_wheel import BUILD_FOLDER, make_wheel
from emulated_root import BUILD, FOLDER, ROOT, run_emulated

HERE = Path(__file__).resolve().parent
ENVIRONMENT = Path("/opt/cairn")  # in the root
SCRATCH = BUILD / "scratch"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
SECONDS_MAX = 3600


def emulated(*command: str | Path, path: str = "/usr/bin:/bin") -> str:
    done = run_emulated(*command, folder=SCRATCH, environment={"PATH": path}, timeout=SECONDS_MAX)
    if done.returncode != 0:
        sys.exit(f"FAILED on aarch64: {' '.join(map(str, command))}\n{done.stdout[-6000:]}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def native(*command: str | Path) -> str:
    """Runs a command here, with the Python package of the release build."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build/release/python")}
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(map(str, command))}\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def install(wheel: Path) -> None:
    """Makes the environment if a list has changed, and installs the wheel by the emulated pip.

    The pip of this machine installs the packages: unpacking torch takes minutes under emulation.
    """
    folder = FOLDER / ENVIRONMENT.relative_to("/")
    packages, done = HERE / "packages.txt", folder / "packages.txt"
    if not done.exists() or done.read_text() != packages.read_text():
        emulated("python3.11", "-m", "venv", "--clear", ENVIRONMENT)
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        native(
            *(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"),
            *("--only-binary", ":all:", "--python-version", "3.11", *platforms, "-r", packages),
            *("--target", folder / "lib/python3.11/site-packages"),
        )
        done.write_text(packages.read_text())
    pip = (ENVIRONMENT / "bin/pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps")
    emulated(*pip, "--force-reinstall", wheel)


def test_python(wheel: Path) -> None:
    sys.path[:0] = [str(ROOT / "packaging")]
    from try_wheel import STOCK

    shutil.rmtree(SCRATCH, ignore_errors=True)
    for folder in (SCRATCH / "here", SCRATCH / "aarch64"):
        folder.mkdir(parents=True)
    install(wheel)
    python, path = ENVIRONMENT / "bin/python", str(ENVIRONMENT / "bin")
    native(sys.executable, "-c", STOCK, SCRATCH / "stock")
    used = emulated(python, ROOT / "packaging/installed_use.py", SCRATCH, "/nothing", "torch", path=path)
    print(f"Python 3.11 of aarch64: {used}", flush=True)
    exchange = HERE / "exchanged_state.py"
    print(native(sys.executable, exchange, "save", SCRATCH / "here"), flush=True)
    print(emulated(python, exchange, "check", SCRATCH / "here"), flush=True)
    print(emulated(python, exchange, "save", SCRATCH / "aarch64"), flush=True)
    print(native(sys.executable, exchange, "check", SCRATCH / "aarch64"), flush=True)


def left_out() -> dict[str, list[str]]:
    """Returns the tests that are not run, by program. Without tests: the whole program."""
    found: dict[str, list[str]] = {}
    for line in (HERE / "left_out.txt").read_text().splitlines():
        words = line.partition("#")[0].split()
        if words:
            found.setdefault(words[0], []).extend(words[1:])
    return found


def test_cpp() -> bool:
    """Runs the C++ tests one program after the other. Returns whether all passed."""
    native("cmake", "--build", BUILD_FOLDER)
    SCRATCH.mkdir(exist_ok=True)
    excluded, failed = left_out(), []
    tests = skipped = 0
    begin = time.monotonic()
    programs = [path for path in sorted((BUILD_FOLDER / "bin").glob("*_test")) if excluded.get(path.name) != []]
    for program in programs:
        chosen = f"--gtest_filter=-{':'.join(excluded.get(program.name, []))}"
        start = time.monotonic()
        done = run_emulated(program, chosen, folder=ROOT, timeout=SECONDS_MAX)
        lines = done.stdout.splitlines()
        (BUILD / "logs").mkdir(exist_ok=True)
        (BUILD / "logs" / f"{program.name}.txt").write_text(done.stdout)
        passed = count(lines, "[  PASSED  ] ")
        tests += passed
        skipped += count(lines, "[  SKIPPED ] ")
        if done.returncode != 0:
            failed.append(program.name)
            print("\n".join(line for line in lines if line.startswith("[  FAILED  ]")) or done.stdout[-2000:])
        print(f"{program.name}: {passed} passed, {time.monotonic() - start:.0f} s", flush=True)
    print(
        f"aarch64: {tests} C++ tests of {len(programs)} programs passed, {skipped} skipped, "
        f"{len(failed)} programs failed, {time.monotonic() - begin:.0f} s"
    )
    return not failed


def count(lines: list[str], begin: str) -> int:
    """Returns the number that GoogleTest prints in the line that begins so."""
    return next((int(line[len(begin) :].split()[0]) for line in lines if line.startswith(begin)), 0)


def main() -> int:
    part = sys.argv[1] if len(sys.argv) > 1 else "all"
    wheel = make_wheel()
    if part in ("all", "python"):
        test_python(wheel)
    return 0 if part == "python" or test_cpp() else 1


if __name__ == "__main__":
    sys.exit(main())
