"""Uses an installed cairn-checkpoint as a user would: python installed_use.py SCRATCH CHECKOUT [torch].

SCRATCH holds `stock`, a checkpoint of stock torch, and, after a run with torch, `cairn`. With `torch`, the program
saves in the background through the writer process and loads. The program ends with an AssertionError if a result
differs from the expectation; otherwise the program prints its steps.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

ENVIRONMENT = Path(sys.prefix)
EXPECTED = np.arange(300 * 257, dtype=np.float32).reshape(300, 257)  # more than one checksum block of 64 KiB


def tool(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = ["cairn", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check_surroundings(checkout: Path) -> None:
    """Checks that the machine lacks the files that a user's machine may lack."""
    assert os.environ["PATH"] == str(ENVIRONMENT / "bin")
    found = [name for name in ("c++", "g++", "gcc", "cc", "clang++", "cmake", "ninja") if shutil.which(name)]
    assert not found, found
    assert not list(checkout.iterdir()), "the checkout is in sight"
    for name in ("libisal.so", "libisal.so.2"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        raise AssertionError(f"{name} can be loaded")


def check_package() -> None:
    import cairn

    assert ENVIRONMENT in Path(cairn.__file__).parents, cairn.__file__
    assert cairn.__version__ == distribution("cairn-checkpoint").version
    assert tool("--version").stdout.split()[-1] == cairn.__version__
    writer = subprocess.run(
        [Path(cairn.__file__).parent / "bin/cairn-writer"], capture_output=True, text=True, check=False
    )
    assert "started only by a program that saves with Cairn" in writer.stderr, writer


def check_reading(directory: Path) -> None:
    import cairn

    checkpoint = cairn.open(directory)
    assert np.array_equal(checkpoint["weight"], EXPECTED)
    assert np.array_equal(checkpoint.read("weight", (slice(7, 290), slice(3, 200))), EXPECTED[7:290, 3:200])
    assert checkpoint["step"] == 7
    assert cairn.verify(directory)
    verified = tool("verify", directory)
    assert verified.returncode == 0, verified


def check_damage(directory: Path, damaged: Path) -> None:
    """Checks that `cairn verify` finds a flipped bit."""
    shutil.copytree(directory, damaged)
    data = max(damaged.glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    verified = tool("verify", damaged)
    assert verified.returncode == 1 and "weight" in verified.stdout + verified.stderr, verified
    shutil.rmtree(damaged)


def check_without_torch() -> None:
    import cairn

    try:
        cairn.save({}, checkpoint_id="nowhere")
    except ImportError as error:
        assert "torch" in str(error)
    else:
        raise AssertionError("cairn.save without torch")


def runs_writer(process: Path) -> bool:
    """Whether `process`, an entry of /proc, runs the cairn-writer of this environment, or emulates it."""
    if not process.name.isdigit() or process.stat().st_uid != os.getuid():
        return False
    try:
        words = (process / "cmdline").read_text().split("\0")
        programs = [(process / "exe").readlink(), *map(Path, words)]
    except OSError:
        return False
    return any(program.name == "cairn-writer" and ENVIRONMENT in program.parents for program in programs)


def check_saving(scratch: Path) -> None:
    import torch
    import torch.distributed.checkpoint as stock

    import cairn

    state = {"weight": torch.from_numpy(EXPECTED.copy()), "step": 7}
    target = scratch / "cairn"
    future = cairn.async_save(state, checkpoint_id=target, async_checkpointer_type=cairn.AsyncCheckpointerType.PROCESS)
    future.result(timeout=300)
    assert any(runs_writer(entry) for entry in Path("/proc").iterdir()), "no cairn-writer of this environment runs"
    for load in (cairn.load, stock.load):
        loaded = {"weight": torch.zeros(EXPECTED.shape), "step": 0}
        load(loaded, checkpoint_id=target)
        assert torch.equal(loaded["weight"], state["weight"]) and loaded["step"] == 7
    cairn.save(state, checkpoint_id=scratch / "blocking")
    check_reading(scratch / "blocking")


def main() -> None:
    scratch, checkout, with_torch = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] == ["torch"]
    check_surroundings(checkout)
    check_package()
    if with_torch:
        check_saving(scratch)
    else:
        check_without_torch()
    for name in ("stock", "cairn"):
        check_reading(scratch / name)
    check_damage(scratch / "cairn", scratch / "damaged")
    print("imports, opens, verifies, finds a flipped bit" + ("; saves in the background, loads" if with_torch else ""))


if __name__ == "__main__":
    main()
