"""Small files with large declared contents: the decoder's memory and time are proportional to the size of the file."""

import shutil
import subprocess
import sys
from pathlib import Path

import amplifiers
import pytest

import cairn

BYTES_PER_INPUT_BYTE = 64
BYTES_MIN = 16 << 20
BASE_BYTES = 24 << 20  # of the tool itself: code and libraries
SECONDS_MAX = 20  # of processor time; each case takes well below a second


def run(bytes_max: int, *words: str | Path) -> int:
    """Runs a program with at most `bytes_max` of memory; returns its exit status (negative: a signal)."""
    # The shell sets the limits: the peak memory that the system reports for a child of pytest includes pytest's own
    # memory.
    limited = ["sh", "-c", 'ulimit -d "$0" -t "$1"; shift; exec "$@"', str(bytes_max // 1024), str(SECONDS_MAX)]
    done = subprocess.run([*limited, *map(str, words)], capture_output=True, check=False, timeout=300)
    assert b"bad_alloc" not in done.stderr, f"it takes more than {bytes_max} bytes"
    return done.returncode


def inspect(directory: Path, metadata: bytes, payload: bytes = b"") -> None:
    tool = shutil.which("cairn")
    assert tool is not None, "the tool is not on PATH: run the tests through ./dev"
    directory.mkdir()
    (directory / ".metadata").write_bytes(metadata)
    (directory / "__0_0.distcp").write_bytes(payload)
    size = len(metadata) + len(payload)
    status = run(BASE_BYTES + BYTES_MIN + BYTES_PER_INPUT_BYTE * size, tool, "inspect", directory)
    assert status in (0, 3), f"inspect ended with {status}"


@pytest.mark.parametrize("attack", amplifiers.METADATA)
def test_metadata(attack: str, checkpoint: Path) -> None:
    inspect(checkpoint, amplifiers.METADATA[attack]())


@pytest.mark.parametrize("attack", amplifiers.VALUES)
def test_value(attack: str, checkpoint: Path) -> None:
    payload = amplifiers.VALUES[attack]()
    inspect(checkpoint, amplifiers.shared_payload(1, len(payload)), payload)


def test_many_keys_with_one_payload(checkpoint: Path) -> None:
    text = amplifiers.Assembler.text("v" * 10_000_000)
    payload = amplifiers.archive(b"\x80\x02" + text + b".")
    inspect(checkpoint, amplifiers.shared_payload(200, len(payload)), payload)
    with pytest.raises(cairn.Corrupt, match="share bytes"):
        cairn.open(checkpoint)


def test_overlapping_records_do_not_reach_torch(checkpoint: Path) -> None:
    payload = amplifiers.overlapping_records(500_000)
    checkpoint.mkdir()
    (checkpoint / ".metadata").write_bytes(amplifiers.shared_payload(1, len(payload)))
    (checkpoint / "__0_0.distcp").write_bytes(payload)
    with pytest.raises(cairn.Corrupt, match="share bytes"):
        cairn.load({"0": None}, checkpoint_id=checkpoint)


NUMBERS = [amplifiers.Assembler.integer(number) for number in range(10_000)]
REPEATED = {
    "bytearray": (
        "builtins",
        "bytearray",
        amplifiers.Assembler.text("a" * 50_000),
        amplifiers.Assembler.text("latin-1"),
    ),
    "encode": ("_codecs", "encode", amplifiers.Assembler.text("a" * 50_000), amplifiers.Assembler.text("latin1")),
    "size": ("torch", "Size", amplifiers.Assembler.tuple_(*NUMBERS)),
    "set": ("__builtin__", "set", amplifiers.Assembler.list_(*NUMBERS)),
    "ordered_dict": (
        "collections",
        "OrderedDict",
        amplifiers.Assembler.list_(*(amplifiers.Assembler.tuple_(number, number) for number in NUMBERS)),
    ),
}
FOR_PYTHON = {
    **{name: amplifiers.repeated_argument(*call) for name, call in REPEATED.items()},
    "keys": amplifiers.colliding_dict,
    "members": amplifiers.colliding_members,
}
# Prints the load's memory, its processor time, and the processor time of a loop with 20 million steps: 0.4 to 1 s.
LOAD_VALUE = """
import resource, sys, cairn
cairn.load({}, checkpoint_id=sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF)
try:
    cairn.load({"0": None}, checkpoint_id=sys.argv[1])
except cairn.UnsafeContent:
    after = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(20_000_000):
        pass
    loop = resource.getrusage(resource.RUSAGE_SELF).ru_utime - after.ru_utime
    print(after.ru_maxrss - before.ru_maxrss, after.ru_utime - before.ru_utime, loop)
"""


@pytest.mark.parametrize("attack", FOR_PYTHON)
def test_a_value_that_python_builds(attack: str, checkpoint: Path) -> None:
    """The engine's refusal is final: Cairn does not fall back to torch, which would build the value."""
    payload = FOR_PYTHON[attack](600_000)
    checkpoint.mkdir()
    (checkpoint / ".metadata").write_bytes(amplifiers.shared_payload(1, len(payload)))
    (checkpoint / "__0_0.distcp").write_bytes(payload)
    done = subprocess.run([sys.executable, "-c", LOAD_VALUE, checkpoint], capture_output=True, check=True, timeout=300)
    kilobytes, seconds, seconds_of_loop = map(float, done.stdout.split())
    assert kilobytes * 1024 < BYTES_MIN + BYTES_PER_INPUT_BYTE * len(payload)
    assert seconds < 4 * seconds_of_loop  # "keys" would take 14 seconds if Python built the value


LOAD = """
import sys, torch, cairn
try:
    cairn.open(sys.argv[1])["t"]
except cairn.NotFound:
    sys.exit(7)
"""


def test_chunks_of_many_dimensions(checkpoint: Path) -> None:
    """The check of whether 4,000 chunks, cut along 20 dimensions, fit together takes linear time."""
    checkpoint.mkdir()
    (checkpoint / ".metadata").write_bytes(amplifiers.many_dimensions(3_000_000))
    assert run(4 << 30, sys.executable, "-c", LOAD, checkpoint) == 7  # only the data file is missing


SAVE = """
import resource, sys, torch, cairn
cairn.save({"w": torch.zeros(4)}, checkpoint_id=sys.argv[1], no_dist=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
open(sys.argv[1] + "/__9.metadata", "wb").write(open(sys.argv[2], "rb").read())
cairn.save({"w": torch.zeros(4)}, checkpoint_id=sys.argv[1], no_dist=True)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sys.exit(0 if after - before < 32 * 1024 else 1)
"""


def test_a_metadata_file_beside_the_checkpoint_does_not_burden_saves(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(amplifiers.shared_chunk_list(50_000))
    done = subprocess.run([sys.executable, "-c", SAVE, checkpoint, tmp_path / "bomb"], check=False, timeout=300)
    assert done.returncode == 0
