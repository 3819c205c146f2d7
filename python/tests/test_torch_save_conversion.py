"""``cairn.format_utils``: files that only torch reads, damage in these files, refusals, and the target's name."""

import collections
import signal
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import same
import torch
import warm_python

import cairn
from cairn import format_utils
from cairn._torch_files.file_conversion import main
from cairn._torch_files.torch_save_tensors import TorchSaveTensors


class Unknown:
    pass


class OwnDict(dict[str, Any]):
    pass


def deflated(state: Any, file: Path) -> None:
    torch.save(state, file.with_name("stored"))
    with zipfile.ZipFile(file.with_name("stored")) as source, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for info in source.infolist():
            out.writestr(info.filename, source.read(info))


def saved_and_loaded(file: Path, checkpoint: Path, state: Any, **options: Any) -> None:
    """Converts the file, and compares the checkpoint with the state."""
    format_utils.torch_save_to_dcp(file, checkpoint, **options)
    found = {key: torch.zeros_like(value) for key, value in state.items()}
    cairn.load(found, checkpoint_id=checkpoint)
    same.assert_same(found, dict(state))


def test_a_file_with_compressed_records_keeps_its_values(checkpoint: Path, tmp_path: Path) -> None:
    state = {"a": torch.arange(1000.0) % 3, "z": torch.randint(0, 255, (100000,), dtype=torch.uint8)}
    deflated(state, tmp_path / "file.pt")
    saved_and_loaded(tmp_path / "file.pt", checkpoint, state)


def nested_deep(leaf: Any, depth: int) -> Any:
    for _ in range(depth):
        leaf = {"d": leaf}
    return leaf


w = torch.arange(1000.0)
ONLY_FOR_TORCH = {
    "dtype": ({"w": w, torch.float32: 1}, {}),
    "deep": ({"w": w, "d": nested_deep(1, 210)}, {}),
    "dict subclass": (OwnDict(w=w), {"allow_pickle": True}),
    "UserDict": (collections.UserDict(w=w), {"allow_pickle": True}),
}


@pytest.mark.parametrize(("state", "options"), ONLY_FOR_TORCH.values(), ids=ONLY_FOR_TORCH)
def test_a_flipped_byte_is_found_in_a_file_that_only_torch_reads(
    state: Any, options: Any, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file.pt"
    torch.save(state, file)
    content = bytearray(file.read_bytes())
    content[content.index(w.numpy().tobytes()) + 500] ^= 1
    file.write_bytes(content)
    with pytest.raises(cairn.Corrupt, match=r"record 'file/data/0' of file\.pt does not match its checksum"):
        format_utils.torch_save_to_dcp(file, checkpoint, **options)
    assert not checkpoint.exists()


def test_a_file_without_checksums_is_read(checkpoint: Path, tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(OwnDict(w=w), tmp_path / "file.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    saved_and_loaded(tmp_path / "file.pt", checkpoint, {"w": w}, allow_pickle=True)


def test_a_refused_value_is_named_by_key_and_class(checkpoint: Path, tmp_path: Path) -> None:
    torch.save({"w": w, "cfg": {"u": Unknown()}}, tmp_path / "file.pt")
    with pytest.raises(cairn.UnsafeContent, match=r"'cfg\.u' holds a .*Unknown.*allow_pickle=True") as caught:
        format_utils.torch_save_to_dcp(tmp_path / "file.pt", checkpoint)
    assert caught.value.key == "cfg.u"
    assert str(caught.value.actual).endswith(".Unknown")
    torch.save(Unknown(), tmp_path / "file.pt")  # no state dict: the class alone is known
    with pytest.raises(cairn.UnsafeContent, match="allow_pickle=True") as caught:
        format_utils.torch_save_to_dcp(tmp_path / "file.pt", checkpoint)
    assert str(caught.value.actual).endswith(".Unknown")
    assert "\x1b" not in str(caught.value)


def test_a_whole_file_that_cannot_be_read_is_not_called_damaged(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    for allow_pickle in (False, True):
        with pytest.raises(cairn.Unsupported, match=r"TorchScript archive, which torch\.jit\.load reads"):
            format_utils.torch_save_to_dcp(tmp_path / "script.pt", checkpoint, allow_pickle=allow_pickle)
    module = types.ModuleType("module_of_another_machine")
    own: Any = type("Own", (), {"__module__": module.__name__})
    module.Own = own  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, module.__name__, module)
        torch.save({"own": own()}, tmp_path / "own.pt")
    with pytest.raises(cairn.Unsupported, match="module_of_another_machine"):
        format_utils.torch_save_to_dcp(tmp_path / "own.pt", checkpoint, allow_pickle=True)
    assert not checkpoint.exists()


def test_the_program_prints_no_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    contents: dict[str, Any] = {
        "tensor": torch.ones(2),
        "collision": {"a.b": w, "a": {"b": w}},
        "nested tensor": {"n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])},
    }
    for name, content in contents.items():
        torch.save(content, tmp_path / f"{name}.pt")
        assert main(["torch_to_dcp", str(tmp_path / f"{name}.pt"), str(tmp_path / "split")]) == 1
        told = capfd.readouterr().err
        assert told.startswith("cairn: "), name
        assert "Traceback" not in told, name
        assert len(told.splitlines()) == 1, told
    assert main(["dcp_to_torch", str(tmp_path / "none"), str(tmp_path / "out.pt")]) == 1
    told = capfd.readouterr().err
    assert told.startswith("cairn: ")
    assert "Traceback" not in told
    with pytest.raises(cairn.InvalidArgument, match=r"a\.b"):
        format_utils.torch_save_to_dcp(tmp_path / "collision.pt", tmp_path / "split")


STATES = {"streamed": {"w": w}, "by torch": {"w": w, "s": (torch.eye(3).to_sparse(),)}}
BOTH_WAYS = pytest.mark.parametrize("state", STATES.values(), ids=STATES)


@BOTH_WAYS
def test_a_link_as_target_is_written_through(state: Any, checkpoint: Path, tmp_path: Path) -> None:
    cairn.save(state, checkpoint_id=checkpoint)
    (tmp_path / "there").mkdir()
    (tmp_path / "link.pt").symlink_to("there/file.pt")
    for _ in range(2):
        format_utils.dcp_to_torch_save(checkpoint, tmp_path / "link.pt")
        assert (tmp_path / "link.pt").is_symlink()
        assert torch.equal(torch.load(tmp_path / "there/file.pt", weights_only=True)["w"], w)
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["file.pt"]


@BOTH_WAYS
def test_a_name_of_255_bytes_and_a_missing_directory(state: Any, checkpoint: Path, tmp_path: Path) -> None:
    cairn.save(state, checkpoint_id=checkpoint)
    name = "n" * 252 + ".pt"
    format_utils.dcp_to_torch_save(checkpoint, tmp_path / name)
    assert torch.equal(torch.load(tmp_path / name, weights_only=True)["w"], w)
    with pytest.raises(cairn.NotFound, match="there is no directory"):
        format_utils.dcp_to_torch_save(checkpoint, tmp_path / "none" / "file.pt")
    assert not (tmp_path / "none").exists()


@BOTH_WAYS
def test_data_files_may_be_links_if_the_caller_says_so(state: Any, checkpoint: Path, tmp_path: Path) -> None:
    cairn.save(state, checkpoint_id=checkpoint)
    (checkpoint / "__0_0.distcp").rename(tmp_path / "data")
    (checkpoint / "__0_0.distcp").symlink_to(tmp_path / "data")
    with pytest.raises((cairn.UnsafeContent, cairn.Error), match="follow_links"):
        format_utils.dcp_to_torch_save(checkpoint, tmp_path / "file.pt")
    assert main(["dcp_to_torch", str(checkpoint), str(tmp_path / "file.pt"), "--follow-links"]) == 0
    assert torch.equal(torch.load(tmp_path / "file.pt", weights_only=True)["w"], w)


def test_a_linked_file_becomes_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    torch.save({"w": w}, tmp_path / "file.pt")
    (tmp_path / "link.pt").symlink_to("file.pt")
    saved_and_loaded(tmp_path / "link.pt", checkpoint, {"w": w})


def test_a_kill_of_a_conversion_by_torch_leaves_no_file(checkpoint: Path, tmp_path: Path) -> None:
    """The process kills itself after torch has written the file, before the sync."""
    cairn.save(STATES["by torch"], checkpoint_id=checkpoint)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file.pt").write_bytes(b"old")
    code = """
import os, signal, sys
from cairn import format_utils
from cairn._torch_files.file_conversion import main
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
format_utils.dcp_to_torch_save(sys.argv[1], sys.argv[2])
"""
    command = [sys.executable, "-c", code, str(checkpoint), str(tmp_path / "there/file.pt")]
    assert warm_python.run(command, check=False, timeout=240).returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["file.pt"]
    assert (tmp_path / "there/file.pt").read_bytes() == b"old"


FULL_DISK = """
import resource, signal, sys, torch
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from cairn._torch_files.file_conversion import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("mode", ["dcp_to_torch", "torch_to_dcp"])
def test_a_full_disk_of_a_conversion_by_torch_is_an_error_in_one_line(mode: str, tmp_path: Path) -> None:
    state = {"w": torch.randn(1000, 1000)}
    torch.save(state, tmp_path / "a.pt")
    cairn.save(state, checkpoint_id=tmp_path / "a")
    before = sorted(tmp_path.rglob("*"))
    names = (tmp_path / "a", tmp_path / "t.pt") if mode == "dcp_to_torch" else (tmp_path / "a.pt", tmp_path / "p" / "q")
    program = [sys.executable, "-c", FULL_DISK, mode, *names, "--allow-pickle"]
    done = warm_python.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("cairn: ")]
    assert len(lines) == 1
    assert "File too large" in lines[0]
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_cut_archive_is_corrupt(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(40000)}, tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    for size in (10, 2000, len(content) - 30):
        (tmp_path / "cut.pt").write_bytes(content[:size])
        for read in (cairn.open, cairn.verify, lambda file: cairn.convert(file, tmp_path / "d", to="dcp")):
            with pytest.raises(cairn.Corrupt, match=r"cut\.pt.*cut"):
                read(tmp_path / "cut.pt")


def marks_differ(a: Path, b: Path) -> bool:
    """Whether the ranks would see that they have different files."""
    marks = [TorchSaveTensors(file, False).mark() for file in (a, b)]
    return marks[0] != marks[1] or not all(marks)


@pytest.mark.parametrize("form", ["zip", "zip without checksums", "legacy"])
def test_files_of_different_content_have_different_marks(form: str, tmp_path: Path) -> None:
    state = {f"p{i}": torch.randn(20) for i in range(1200)}
    with_checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options("without" not in form)
    try:
        for name in ("a.pt", "b.pt"):
            torch.save(state, tmp_path / name, _use_new_zipfile_serialization=form != "legacy")
            state["p0"][3] += 1
    finally:
        torch.serialization.set_crc32_options(with_checksums)
    assert marks_differ(tmp_path / "a.pt", tmp_path / "b.pt")
    assert marks_differ(tmp_path / "a.pt", tmp_path / "a.pt") == (form != "zip")
