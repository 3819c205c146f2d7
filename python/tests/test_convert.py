"""cairn.convert and `cairn convert`: bit-equal copies among DCP, torch.save and safetensors."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hanging
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kills import Killer, assert_each_is_hit
from tensor_dtypes import OF_EVERY_FORMAT
from tool import CHECK_FAILED, USAGE, json_of, run, tool

import cairn
from cairn.conversion import Format


def of_every_dtype() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    tensors = {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "turned": torch.randn(7, 5).t()}
    for dtype in OF_EVERY_FORMAT:
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (48,), dtype=torch.uint8, generator=generator)
        tensors[str(dtype).removeprefix("torch.")] = raw.view(dtype)
    return tensors


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tensor.shape, bytes(raw.numpy())


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert bits(found) == bits(expected)
    elif isinstance(expected, dict):
        assert set(found) == set(expected)  # a DCP checkpoint has its tensors first
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def nested() -> dict[str, Any]:
    return {
        "model": of_every_dtype(),
        "optim": {"state": {"0": {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
        "epoch": 7,
        "name": "run",
    }


def save_as(form: Format, state: dict[str, Any], place: Path) -> Path:
    """Saves by Cairn's, torch's or safetensors' own writer."""
    if form == "dcp":
        cairn.save(state, checkpoint_id=place)
        return place
    file = place.with_suffix(".pt" if form == "torch" else ".safetensors")
    if form == "torch":
        torch.save(state, file)
    else:
        safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in state.items()}, file)
    return file


def target_of(form: Format, place: Path) -> Path:
    return place if form == "dcp" else place.with_suffix(".pt" if form == "torch" else ".safetensors")


def load_from(form: Format, place: Path, like: dict[str, Any]) -> dict[str, Any]:
    """Loads by torch's or safetensors' own reader."""
    if form == "torch":
        loaded = torch.load(place, weights_only=True)
        return {key: loaded[key] for key in like}  # a safetensors file has an order of its own
    if form == "safetensors":
        loaded = safetensors.torch.load_file(place)
        return {key: loaded[key] for key in like}
    state = {key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else value for key, value in like.items()}
    dcp.load(state, checkpoint_id=place, no_dist=True)
    return state


@pytest.mark.parametrize("to", ["dcp", "torch", "safetensors"])
@pytest.mark.parametrize("form", ["dcp", "torch", "safetensors"])
def test_each_format_becomes_each_format_bit_by_bit(form: Format, to: Format, tmp_path: Path) -> None:
    state = of_every_dtype()
    source = save_as(form, state, tmp_path / "source")
    target = target_of(to, tmp_path / "target")
    report = cairn.convert(source, target, to=to)
    assert (report.source_format, report.tensors, report.values) == (form, len(state), 0)
    assert_same(load_from(to, target, state), state)
    assert cairn.verify(target)


@pytest.mark.parametrize("stock", [False, True])
def test_a_nested_state_keeps_its_structure_and_values(stock: bool, tmp_path: Path) -> None:
    state = nested()
    (dcp if stock else cairn).save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    cairn.convert(tmp_path / "a", tmp_path / "b.pt", to="torch")
    assert_same(torch.load(tmp_path / "b.pt", weights_only=True), state)
    cairn.convert(tmp_path / "b.pt", tmp_path / "c", to="dcp")
    cairn.convert(tmp_path / "c", tmp_path / "d.pt", to="torch")
    assert_same(torch.load(tmp_path / "d.pt", weights_only=True), state)


def test_tied_tensors_stay_tied_in_a_torch_file_and_are_reported_elsewhere(tmp_path: Path) -> None:
    weight = torch.randn(64, 32)
    torch.save({"a": weight, "b": weight, "row": weight[3], "other": torch.ones(3)}, tmp_path / "a.pt")
    report = cairn.convert(tmp_path / "a.pt", tmp_path / "b.pt", to="torch", dtype=torch.bfloat16)
    assert [(set(keys), stay) for keys, stay in report.tied] == [({"a", "b", "row"}, True)]
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert len({found[key].untyped_storage().data_ptr() for key in ("a", "b", "row")}) == 1
    assert_same(found["row"], weight[3].bfloat16())
    report = cairn.convert(tmp_path / "a.pt", tmp_path / "c.safetensors", to="safetensors")
    assert [stay for _, stay in report.tied] == [False]
    assert_same(safetensors.torch.load_file(tmp_path / "c.safetensors")["b"], weight)


def test_the_tool_selects_renames_converts_and_cuts_into_shards(tmp_path: Path) -> None:
    layers = {"layers.0.w": torch.randn(500, 300), "layers.1.w": torch.randn(500, 300)}
    cairn.save({"model": layers, "step": 3}, checkpoint_id=tmp_path / "a")
    words = ("--to", "safetensors", "--keys", "model", "--rename", "model.layers.*.w=h.*.weight", "--dtype", "bf16")
    found = json_of("convert", tmp_path / "a", tmp_path / "hf", *words, "--max-shard-size", "300KB")
    assert found["files"][-1] == "model.safetensors.index.json"
    assert len(found["files"]) == 3
    model = cairn.open(tmp_path / "hf", tensors="torch")
    assert sorted(model) == ["h.0.weight", "h.1.weight"]
    assert_same(model["h.1.weight"], layers["layers.1.w"].bfloat16())
    refused = run("convert", tmp_path / "a", tmp_path / "b", "--to", "dcp", "--rename", "nothing=x")
    assert (refused.returncode, b"nothing=x" in refused.stderr) == (CHECK_FAILED, True)
    refused = run("convert", tmp_path / "a", tmp_path / "hf", "--to", "safetensors", "--keys", "model")
    assert (refused.returncode, b"already exists" in refused.stderr) == (USAGE, True)
    assert run("convert", tmp_path / "a", tmp_path / "b").returncode == USAGE  # the name says no format
    refused = run("convert", tmp_path / "a", tmp_path / "b", "--to", "safetensors")
    assert b"'step'" in refused.stderr
    assert not (tmp_path / "b").exists()


def test_reshard_makes_files_of_equal_sizes_that_stock_reads(tmp_path: Path) -> None:
    state = {"big": torch.randn(3000, 1000), "small": torch.randn(10), "scalar": torch.tensor(1)}
    cairn.save(state, checkpoint_id=tmp_path / "a")
    json_of("reshard", tmp_path / "a", tmp_path / "b", "--files", "4")
    sizes = [file.stat().st_size for file in (tmp_path / "b").glob("*.distcp")]
    assert len(sizes) == 4
    assert max(sizes) < 1.1 * min(sizes)
    assert_same(load_from("dcp", tmp_path / "b", state), state)


@pytest.mark.parametrize("form", ["dcp", "torch"])
def test_a_flipped_byte_and_a_cut_file_leave_no_target(form: Format, tmp_path: Path) -> None:
    state = {"a": torch.randn(1500, 1000), "b": torch.randn(100)}  # above a buffer of 4 MiB
    source = save_as(form, state, tmp_path / "source")
    file = source if form == "torch" else next(source.glob("*.distcp"))
    whole = file.read_bytes()
    offset = 3_000_000
    file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
    for to in ("dcp", "torch", "safetensors"):
        target = target_of(to, tmp_path / "target")
        with pytest.raises(cairn.Corrupt) as caught:
            cairn.convert(source, target, to=to, overwrite=True)
        assert caught.value.key == "a"
        assert not (target / ".metadata").exists() if to == "dcp" else not target.exists()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(cairn.Error):
        cairn.convert(source, tmp_path / "t.safetensors", to="safetensors")
    assert not list(tmp_path.glob(".cairn*"))


# The steps at the top of src/convert/convert.cc, and of the transaction that commits: src/commit/save_transaction.cc
# and metadata_commit.cc for DCP, model_commit.cc for a single file.
COMMITS = {
    "dcp": r"renameat2? target/\.cairn-ID/metadata -> target/\.metadata",
    "torch": r"renameat2? \.cairn-model-ID/target\.pt -> target\.pt",
    "safetensors": r"renameat2? \.cairn-model-ID/target\.safetensors -> target\.safetensors",
}
STEPS_OF_DCP = {
    "claim": r"mkdirat target/\.cairn-ID",
    "claim, with the lease": r".* -> target/\.cairn-ID/lease",
    "write": r"fallocate target/\.cairn-ID/__0_ID\.distcp\npwrite .*",
    "write, further bytes": r"pwrite target/\.cairn-ID/__0_ID\.distcp\npwrite .*",
    "write, synced": r"fsync target/\.cairn-ID/__0_ID\.distcp",
    "publish": r"renameat2 target/\.cairn-ID/__0_ID\.distcp -> target/__0_ID\.distcp",
    "publish, synced": r"renameat2 .* -> target/__0_ID\.distcp\n(fsync \.\n)?fsync target",
    "seal": r".* -> target/\.cairn-ID/metadata",
    "seal, synced": r"fsync target/\.cairn-ID\nfsync target",
    "commit": COMMITS["dcp"],
    "commit, synced": rf"{COMMITS['dcp']}\nfsync target",
    "clean": r"unlinkat target/__0_ID\.distcp",
    "clean, the folder": r"unlinkat target/\.cairn-ID",
}
STEPS_OF_A_FILE = {
    "claim": r"mkdirat \.cairn-model-ID",
    "claim, with the lease": r".* -> \.cairn-model-ID/lease",
    "write": r"fallocate \.cairn-model-ID/target\.\w+\npwrite .*",
    "write, further bytes": r"pwrite \.cairn-model-ID/target\.\w+\npwrite .*",
    "write, synced": r"fsync \.cairn-model-ID/target\.\w+",
    "commit, with the mark for one file": r".* -> \.cairn-model-ID/one-file",
    "commit": r"renameat2? \.cairn-model-ID/target\.(\w+) -> target\.\1",
    "commit, synced": r"renameat.* -> target\.\w+\nfsync \.",
    "clean, the mark": r"unlinkat \.cairn-model-ID/one-file",
    "clean, the folder": r"unlinkat \.cairn-model-ID",
}


@pytest.mark.slow
@pytest.mark.parametrize("to", ["dcp", "torch", "safetensors"])
def test_a_kill_at_each_place_leaves_the_old_target_or_the_new(to: Format, tmp_path: Path, killer: Killer) -> None:
    states = {"old": {"a": torch.zeros(1000, 1000)}, "new": {"a": torch.ones(1200, 1000)}}
    for which, state in states.items():
        cairn.save(state, checkpoint_id=tmp_path / which)
    folder = tmp_path / "targets"
    folder.mkdir()
    target = target_of(to, folder / "target")

    def conversion(which: str) -> Callable[[], object]:
        return functools.partial(cairn.convert, tmp_path / which, target, to=to, overwrite=True)

    def leftovers() -> list[Path]:
        return [path for path in folder.rglob(".*") if path.name != ".metadata"]

    conversion("old")()
    runs = []
    for kill in killer.kill_before_each_call(conversion("new"), folder):
        where = f"killed: {kill.is_killed}, {kill.calls[-2:]}"
        runs.append(kill)
        which = "new" if kill.has_made(COMMITS[to]) else "old"
        assert bits(cairn.open(target, tensors="torch")["a"][...]) == bits(states[which]["a"]), where
        assert bool(leftovers()) == (kill.is_killed and len(kill.calls) > 1), where
        conversion("old")()
        assert not leftovers(), where
        assert cairn.verify(target)
    assert_each_is_hit(STEPS_OF_DCP if to == "dcp" else STEPS_OF_A_FILE, runs)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanging.library(tmp_path_factory.mktemp("hanging"))


@contextlib.contextmanager
def in_a_read(command: list[str | Path], library: Path, block: Path) -> Iterator["subprocess.Popen[str]"]:
    """Runs the command, whose reads of data files hang until `block` is removed, up to the first such read."""
    block.touch()
    reached = block.with_name(f"{block.name}.reached")
    reached.unlink(missing_ok=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "HANG": f"pread:{block}"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        while not reached.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        try:
            yield process
        finally:
            block.unlink(missing_ok=True)


AS_IN_THE_FOREGROUND = ("env", "--default-signal=INT")  # whoever started the tests may have the signal ignored


@pytest.mark.parametrize("to", ["dcp", "torch", "safetensors"])
def test_ctrl_c_leaves_the_old_target_and_no_trace(to: Format, tmp_path: Path) -> None:
    cairn.save({"a": torch.ones(16, 1 << 20)}, checkpoint_id=tmp_path / "source")  # 64 MiB: takes a while
    cairn.save({"a": torch.zeros(3)}, checkpoint_id=tmp_path / "old")
    target = target_of(to, tmp_path / "target")
    cairn.convert(tmp_path / "old", target, to=to)
    before = sorted(tmp_path.rglob("*"))

    def press(done: int, total: int) -> None:
        if 0 < done < total:
            signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            cairn.convert(tmp_path / "source", target, to=to, overwrite=True, thread_count=1, progress=press)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert sorted(tmp_path.rglob("*")) == before
    words = ["convert", tmp_path / "source", target, "--overwrite", "--to", to]
    with subprocess.Popen([*AS_IN_THE_FOREGROUND, tool(), *words], stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.rglob(".cairn-*")):  # the private folder
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert "interrupted" in process.communicate()[1]
        assert process.returncode == -signal.SIGINT
    assert sorted(tmp_path.rglob("*")) == before
    assert bits(cairn.open(target, tensors="torch")["a"][...]) == bits(torch.zeros(3))


def test_an_exception_of_progress_ends_the_conversion(tmp_path: Path) -> None:
    cairn.save({"a": torch.ones(3)}, checkpoint_id=tmp_path / "source")

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        cairn.convert(tmp_path / "source", tmp_path / "target.pt", to="torch", progress=stop)


COMPARER = """
import signal, sys
import cairn

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    cairn.diff(sys.argv[1], sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_comparison_whose_read_hangs(library: Path, tmp_path: Path) -> None:
    cairn.save({"a": torch.ones(3)}, checkpoint_id=tmp_path / "source")
    source, block = tmp_path / "source", tmp_path / "block"
    with in_a_read([sys.executable, "-c", COMPARER, source], library, block) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupted\n"
        process.wait()
        assert block.exists()
    for words in (["diff", source, source], ["cat", source, "a"]):
        with in_a_read([*AS_IN_THE_FOREGROUND, tool(), *words], library, block) as process:
            process.send_signal(signal.SIGINT)
            process.wait()
            assert process.returncode == -signal.SIGINT
            assert block.exists()


IMPATIENT = """
import sys
import cairn

cairn.configure_saves(publish_deadline_seconds=1)
source, target = sys.argv[1:]
for call in (
    lambda: cairn.convert(source, target, to="torch"),
    lambda: cairn.diff(source, source),
    lambda: cairn.verify(source),
):
    try:
        call()
    except cairn.Unavailable as error:
        print(error, flush=True)
"""


def test_a_read_that_hangs_fails_within_its_deadline(library: Path, tmp_path: Path) -> None:
    source, target, block = tmp_path / "source", tmp_path / "file.pt", tmp_path / "block"
    cairn.save({"a": torch.ones(3)}, checkpoint_id=source)
    with in_a_read([sys.executable, "-c", IMPATIENT, source, target], library, block) as process:
        assert process.stdout is not None
        for _ in range(3):
            error = process.stdout.readline()
            assert "the storage hangs: reading" in error, error
            assert f"{source}/__0_0.distcp" in error
        process.wait()
        assert block.exists()
    assert not target.exists()


def test_100000_keys(tmp_path: Path) -> None:
    state = {f"k{i}": torch.tensor([i]) for i in range(100_000)}
    torch.save(state, tmp_path / "a.pt")
    cairn.convert(tmp_path / "a.pt", tmp_path / "b.safetensors", to="safetensors", durable=False)
    cairn.convert(tmp_path / "b.safetensors", tmp_path / "c.pt", to="torch", durable=False)
    found = torch.load(tmp_path / "c.pt", weights_only=True)
    assert all(int(found[key]) == int(tensor) for key, tensor in state.items())


PARTS = st.recursive(
    st.one_of(
        st.integers(),
        st.text(max_size=5),
        st.booleans(),
        st.floats(allow_nan=False),
        st.lists(st.integers(0, 255), max_size=9).map(lambda numbers: torch.tensor(numbers, dtype=torch.uint8)),
    ),
    lambda inner: st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), inner, min_size=1, max_size=4),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), PARTS, min_size=1, max_size=4))
def test_generated_states_survive_all_the_way_round(state: dict[str, Any], tmp_path: Path) -> None:
    torch.save(state, tmp_path / "a.pt")
    cairn.convert(tmp_path / "a.pt", tmp_path / "b", to="dcp", overwrite=True, durable=False)
    cairn.convert(tmp_path / "b", tmp_path / "c.pt", to="torch", overwrite=True, durable=False)
    assert_same(torch.load(tmp_path / "c.pt", weights_only=True), state)


def test_the_progress_ends_at_the_total_and_wrong_arguments_are_refused(tmp_path: Path) -> None:
    cairn.save({"a": torch.randn(100)}, checkpoint_id=tmp_path / "a")
    seen: list[tuple[int, int]] = []
    cairn.convert(
        tmp_path / "a", tmp_path / "b.pt", to="torch", progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (400, 400)
    with pytest.raises(cairn.InvalidArgument):
        cairn.convert(tmp_path / "a", tmp_path / "a", to="dcp", overwrite=True)
    with pytest.raises(cairn.InvalidArgument):
        cairn.convert(tmp_path / "a", tmp_path / "c", to="dcp", dtype="int8")
    with pytest.raises(cairn.MissingKey):
        cairn.convert(tmp_path / "a", tmp_path / "c", to="dcp", keys=["b*"])
    assert not (tmp_path / "c").exists()


def test_a_tensor_that_repeats_elements_becomes_dense_within_a_bound(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(3.0).expand(4, 3), "all": torch.zeros(1000)}, tmp_path / "file.pt")
    cairn.convert(tmp_path / "file.pt", tmp_path / "dcp", to="dcp")
    target = {"w": torch.zeros(4, 3)}
    cairn.load(target, checkpoint_id=tmp_path / "dcp")
    assert torch.equal(target["w"], torch.arange(3.0).expand(4, 3))
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, tmp_path / "bomb.pt")
    with pytest.raises(cairn.UnsafeContent, match="repeat few elements"):
        cairn.convert(tmp_path / "bomb.pt", tmp_path / "bomb", to="dcp")
    # The sum of the bytes, 2^64, does not fit into 64 bits.
    torch.save({f"w{i}": torch.zeros(1, dtype=torch.uint8).expand(1 << 62) for i in range(4)}, tmp_path / "sum.pt")
    with pytest.raises(cairn.UnsafeContent, match="repeat few elements"):
        cairn.convert(tmp_path / "sum.pt", tmp_path / "bomb", to="dcp")
    assert not (tmp_path / "bomb").exists()
