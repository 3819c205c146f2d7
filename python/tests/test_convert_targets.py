"""The targets of conversions: their order among the saves of a run, other formats in place, and single files."""

import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from cairn.format_utils import dcp_to_torch_save, torch_save_to_dcp
from safetensors.torch import load_file, save_file
from tool import USAGE, json_of, run, tool

import cairn
from cairn.conversion import Format
from cairn.hf_storage import HuggingFaceStorageWriter

STATE = {"w": torch.arange(6.0).reshape(2, 3)}
OTHER = {"w": torch.ones(2, 3)}


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def save_shards(directory: Path) -> None:
    """A model of two files and an index."""
    cairn.save({"a": torch.ones(3), "b": torch.ones(3)}, checkpoint_id=directory.with_name("shards_source"))
    cairn.convert(directory.with_name("shards_source"), directory, to="safetensors", max_shard_bytes=12)
    assert len(contents(directory)) == 3


def assert_refused(source: Path, target: Path, to: Format, match: str) -> None:
    """Nothing changes beside source and target, with or without `overwrite`."""
    before = contents(target.parent)
    for overwrite in (False, True):
        with pytest.raises(cairn.InvalidArgument, match=match):
            cairn.convert(source, target, to=to, overwrite=overwrite)
        assert contents(target.parent) == before


def test_a_copy_never_outranks_the_run_of_its_source(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for step in (100, 200):
        cairn.save(STATE, checkpoint_id=root / f"step-{step}")
    json_of("convert", root / "step-100", root / "step-100-bf16", "--to", "dcp", "--dtype", "bf16")
    json_of("reshard", root / "step-100", root / "step-100-of-999", "--files", "2")
    torch.save(STATE, tmp_path / "state.pt")
    torch_save_to_dcp(tmp_path / "state.pt", root / "step-900")
    assert cairn.latest(root) == str(root / "step-200")
    cairn.save(STATE, checkpoint_id=root / "step-300")
    assert cairn.latest(root) == str(root / "step-300")
    listed = {item["name"]: item["is_newest"] for item in json_of("ls", root)["checkpoints"]}
    assert [name for name, is_newest in listed.items() if is_newest] == ["step-300"]


def test_only_a_copy_with_all_keys_takes_the_place_of_its_original(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for step in (100, 200):
        cairn.save({"model": STATE, "optim": {"m": torch.ones(3), "step": step}}, checkpoint_id=root / f"step-{step}")
    source, copy = root / "step-200", root / "copy"
    parts: list[dict[str, Any]] = [{"exclude": ["optim"]}, {"keys": ["model*"]}, {"renames": {"optim.m": "optim.n"}}]
    for options in parts:
        cairn.convert(source, copy, to="dcp", overwrite=True, **options)
        source.rename(tmp_path / "away")
        assert cairn.latest(root) == str(root / "step-100")
        (tmp_path / "away").rename(source)
    for options in ({}, {"keys": ["*"]}, {"file_count": 2}):
        cairn.convert(source, copy, to="dcp", overwrite=True, **options)
        source.rename(tmp_path / "away")
        assert cairn.latest(root) == str(copy)
        (tmp_path / "away").rename(source)


@pytest.mark.parametrize(("name", "to"), [("t.pt", "torch"), ("t.safetensors", "safetensors")])
def test_a_replaced_file_keeps_its_mode_and_a_new_file_has_the_umask(name: str, to: Format, tmp_path: Path) -> None:
    cairn.save(STATE, checkpoint_id=tmp_path / "a")
    target = tmp_path / name
    cairn.convert(tmp_path / "a", target, to=to)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask()
    for mode in (0o600, 0o640):
        target.chmod(mode)
        cairn.convert(tmp_path / "a", target, to=to, overwrite=True)
        assert stat.S_IMODE(target.stat().st_mode) == mode


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_a_file_of_dcp_to_torch_save_keeps_its_mode(allow_pickle: bool, tmp_path: Path) -> None:
    cairn.save(STATE, checkpoint_id=tmp_path / "a")
    target = tmp_path / "t.pt"
    dcp_to_torch_save(tmp_path / "a", target, allow_pickle=allow_pickle)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask()
    target.write_text("replaced, as by torch")
    target.chmod(0o600)
    dcp_to_torch_save(tmp_path / "a", target, allow_pickle=allow_pickle)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert torch.equal(torch.load(target)["w"], STATE["w"])


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_file_that_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    cairn.save(STATE, checkpoint_id=tmp_path / "a")
    for name, to in (("config.json", "torch"), ("note.pt", "torch"), ("note.safetensors", "safetensors")):
        target = tmp_path / name
        target.write_text('{"hidden_size": 4096}')
        refused = run("convert", tmp_path / "a", target, "--to", to, "--overwrite")
        assert refused.returncode == USAGE
        assert b"no checkpoint" in refused.stderr
        assert b"choose another name" in refused.stderr
        assert target.read_text() == '{"hidden_size": 4096}'
        target.write_bytes(b"")  # a name from mktemp
        json_of("convert", tmp_path / "a", target, "--to", to, "--overwrite")
        json_of("convert", tmp_path / "a", target, "--to", to, "--overwrite")
    cut = tmp_path / "note.pt"
    cut.write_bytes(cut.read_bytes()[:100])
    json_of("convert", tmp_path / "a", cut, "--to", "torch", "--overwrite")


def test_sizes_with_a_fraction_and_names_in_capitals(tmp_path: Path) -> None:
    cairn.save({"a": torch.ones(300), "b": torch.ones(300)}, checkpoint_id=tmp_path / "a")
    for size, files in (("1.5KB", 3), ("0.0023MB", 3), ("1.5GiB", 1)):
        words = ("--to", "safetensors", "--max-shard-size", size, "--overwrite")
        found = json_of("convert", tmp_path / "a", tmp_path / "m", *words)
        assert len(found["files"]) == files, size
    for size in ("1.", ".5GB", "0.0GB", "1.5.5GB", "1.1234567GB"):
        words = ("--to", "safetensors", "--max-shard-size", size, "--overwrite")
        assert run("convert", tmp_path / "a", tmp_path / "m", *words).returncode == USAGE, size
    json_of("convert", tmp_path / "a", tmp_path / "t.PT")
    assert torch.load(tmp_path / "t.PT")["a"].shape == (300,)
    cairn.convert(tmp_path / "a", tmp_path / "half.pt", to="torch", dtype="bf16")
    assert torch.load(tmp_path / "half.pt")["a"].dtype == torch.bfloat16


def test_a_directory_never_gets_a_second_format(tmp_path: Path) -> None:
    cairn.save(STATE, checkpoint_id=tmp_path / "a")
    cairn.save(OTHER, checkpoint_id=tmp_path / "dcp" / "in")
    assert_refused(tmp_path / "a", tmp_path / "dcp" / "in", "safetensors", "DCP checkpoint.*new directory")
    with pytest.raises(cairn.InvalidArgument, match=r"DCP checkpoint.*new directory"):
        cairn.save(STATE, storage_writer=HuggingFaceStorageWriter(str(tmp_path / "dcp" / "in")))
    for name in ("model.safetensors", "vae.safetensors"):
        model = tmp_path / "models" / name.removesuffix(".safetensors")
        model.mkdir(parents=True)
        save_file(OTHER, model / name)
        assert_refused(tmp_path / "a", model, "dcp", "safetensors model.*new directory")
        assert not list(model.glob(".cairn*"))


def test_a_killed_save_beside_a_model_leaves_the_model_readable(tmp_path: Path) -> None:
    save_file(OTHER, tmp_path / "model.safetensors")
    (tmp_path / f".cairn-{'0' * 31}1").mkdir(mode=0o700)
    assert torch.equal(cairn.open(tmp_path, tensors="torch")["w"], OTHER["w"])


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_conversion_never_replaces_a_file_of_its_source(name: str, tmp_path: Path) -> None:
    source = tmp_path / "s"
    cairn.save(STATE, checkpoint_id=source)
    assert_refused(source, source / name, "torch", "a file of the source")
    cairn.save(OTHER, checkpoint_id=tmp_path / "other")
    assert_refused(source, tmp_path / "other" / name, "torch", "name of a file of several")
    cairn.convert(source, source / "inner", to="dcp")  # a new directory within the source
    assert torch.equal(cairn.open(source, tensors="torch")["w"], STATE["w"])
    assert torch.equal(cairn.open(source / "inner", tensors="torch")["w"], STATE["w"])


def test_a_conversion_replaces_neither_an_index_nor_the_model_of_its_source(tmp_path: Path) -> None:
    model = tmp_path / "m" / "hf"
    save_shards(model)
    assert_refused(tmp_path / "m" / "shards_source", model / "model.safetensors.index.json", "torch", "of several")
    assert_refused(model, model / "model.safetensors.index.json", "torch", "a file of the source")
    assert_refused(model / "model-00001-of-00002.safetensors", model, "safetensors", "a file of the source")
    assert_refused(tmp_path / "m" / "shards_source", tmp_path / "x.safetensors", "torch", "means safetensors")


def test_a_file_as_the_target_affects_one_file(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "new.safetensors")
    model = tmp_path / "m" / "hf"
    save_shards(model)
    assert_refused(tmp_path / "new.safetensors", model / "model.safetensors", "safetensors", "model of several files")
    out = tmp_path / "out"
    out.mkdir()
    save_file(OTHER, out / "vae.safetensors")
    vae = (out / "vae.safetensors").read_bytes()
    cairn.convert(tmp_path / "new.safetensors", out / "model.safetensors", to="safetensors")
    assert torch.equal(load_file(out / "model.safetensors")["w"], STATE["w"])
    assert sorted(path.name for path in out.iterdir()) == ["model.safetensors", "vae.safetensors"]
    refused = run("convert", tmp_path / "new.safetensors", out / "model.safetensors")
    assert (refused.returncode, b"already exists" in refused.stderr) == (USAGE, True)
    json_of("convert", tmp_path / "new.safetensors", out / "model.safetensors", "--overwrite")
    assert sorted(path.name for path in out.iterdir()) == ["model.safetensors", "vae.safetensors"]
    assert (out / "vae.safetensors").read_bytes() == vae


def test_a_second_file_beside_the_model_is_no_part_of_the_model(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    json_of("convert", tmp_path / "model.safetensors", tmp_path / "model-bf16.safetensors", "--dtype", "bf16")
    found = cairn.open(tmp_path, tensors="torch")
    assert (found["w"].dtype, torch.equal(found["w"], STATE["w"])) == (torch.float32, True)
    assert cairn.open(tmp_path / "model-bf16.safetensors", tensors="torch")["w"].dtype == torch.bfloat16
    (tmp_path / "other.safetensors").write_bytes(b"damaged")
    assert torch.equal(cairn.open(tmp_path, tensors="torch")["w"], STATE["w"])


def test_a_failed_conversion_removes_the_directories_made_for_the_target(tmp_path: Path) -> None:
    state = {"w": torch.randn(1500, 1000)}
    cairn.save(state, checkpoint_id=tmp_path / "a")
    data = next((tmp_path / "a").glob("*.distcp"))
    with data.open("r+b") as file:
        file.seek(3_000_000)
        byte = file.read(1)
        file.seek(3_000_000)
        file.write(bytes([byte[0] ^ 1]))
    (tmp_path / "p").mkdir()
    targets: list[tuple[str, Format]] = [("p/q/t.pt", "torch"), ("p/q/r.safetensors", "safetensors"), ("p/q/r", "dcp")]
    for name, to in targets:
        with pytest.raises(cairn.Corrupt) as caught:
            cairn.convert(tmp_path / "a", tmp_path / name, to=to)
        assert "target" not in str(caught.value).split("converting")[0]
        assert list((tmp_path / "p").iterdir()) == []
    with pytest.raises(cairn.Corrupt, match="targets, which are partly written"):
        cairn.load({"w": torch.zeros(1500, 1000)}, checkpoint_id=tmp_path / "a")


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_a_link_as_target_is_written_through(name: str, tmp_path: Path) -> None:
    cairn.save({"w": torch.ones(2)}, checkpoint_id=tmp_path / "dcp")
    (tmp_path / "far").mkdir()
    link, file = tmp_path / name, tmp_path / "far" / name
    link.symlink_to(tmp_path / "near")
    (tmp_path / "near").symlink_to(Path("far") / name)
    to: Any = "torch" if name == "a.pt" else "safetensors"
    report = cairn.convert(tmp_path / "dcp", link, to=to)
    assert link.is_symlink()
    assert file.is_file()
    assert not file.is_symlink()
    assert Path(report.directory) == tmp_path / "far"
    with pytest.raises(cairn.InvalidArgument, match="overwrite"):
        cairn.convert(tmp_path / "dcp", link, to=to)
    cairn.convert(tmp_path / "dcp", link, to=to, overwrite=True)
    assert torch.equal(cairn.open(link, tensors="torch")["w"], torch.ones(2))
    (tmp_path / "near").unlink()
    (tmp_path / "near").symlink_to(link)
    with pytest.raises(cairn.InvalidArgument, match="symbolic link"):
        cairn.convert(tmp_path / "dcp", link, to=to)


def test_a_link_to_a_directory_gets_the_checkpoint_into_the_directory(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    cairn.convert(tmp_path / "a.pt", tmp_path / "link", to="dcp")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / ".metadata").is_file()


def test_a_killed_conversion_onto_one_file_leaves_no_other_file(tmp_path: Path) -> None:
    cairn.save({"w": torch.ones(3000, 1000)}, checkpoint_id=tmp_path / "a")
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "model.safetensors"
    process = subprocess.Popen([tool(), "convert", tmp_path / "a", target])
    while process.poll() is None and not list((tmp_path / "out").iterdir()):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    cairn.convert(tmp_path / "a", target, to="safetensors", overwrite=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
