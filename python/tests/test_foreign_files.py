"""The table of docs/guide/foreign-files.md: each kind of file is copied with every bit, or refused with its key."""

import re
from pathlib import Path
from typing import Any

import foreign_files
import pytest
import torch

import cairn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "foreign-files.md"
HOLDS_NO_DICT = {"bare tensor, list of tensors", "whole module"}
# The target has the tensors, not the class.
# A value that contains itself has no form beside its pickle.
COMPARED_BY_STORED_BYTES = {"dict that contains itself"}
LOSES_THE_CLASS = {"parameters and buffers", "Counter, defaultdict, OrderedDict, tuple, set"}
# weights_only=True refuses the source, too.
NEEDS_GLOBALS = {"random states of torch, NumPy, Python", "NumPy arrays and scalars"}


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the table below the heading, by the text of the first column."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section, re.M)]
    return {row[0].replace("`", ""): row[1:] for row in cells[2:]}


def outcome(source: Path, target: Path, to: Any) -> tuple[str, cairn.Error | None]:
    """Converts without consent, then with. Returns the word of the table, and the error of the last refusal."""
    error = None
    for word, consents in (("yes", False), ("with consent", True)):
        try:
            cairn.convert(source, target, to=to, allow_pickle=consents)
        except cairn.Error as refusal:
            error = refusal
            assert not target.exists()
        else:
            return word, error
    return "no", error


def states() -> list[Any]:
    kinds = [(kind, zipped) for kind in foreign_files.STATES for zipped in (True, False)]
    kinds = [(kind, zipped) for kind, zipped in kinds if zipped or kind not in foreign_files.ONLY_IN_ARCHIVES]
    return [pytest.param(kind, zipped, id=f"{kind}, {'archive' if zipped else 'legacy'}") for kind, zipped in kinds]


def test_the_tables_name_every_kind() -> None:
    assert list(rows("Files of `torch.save`")) == list(foreign_files.STATES)
    assert list(rows("Other files")) == list(foreign_files.OTHERS)


@pytest.mark.parametrize(("kind", "zipped"), states())
def test_a_state_is_copied_whole_or_refused(kind: str, zipped: bool, tmp_path: Path) -> None:
    file, other = tmp_path / "a.pt", tmp_path / "b.pt"
    foreign_files.write_state(kind, 1, file, zipped)
    foreign_files.write_state(kind, -1, other, zipped)
    to_torch, to_dcp = rows("Files of `torch.save`")[kind]
    copy, checkpoint = tmp_path / "copy.pt", tmp_path / "dcp"
    word, error = outcome(file, copy, "torch")
    assert word == to_torch, error
    assert word == "yes" or (error is not None and (error.key or kind in HOLDS_NO_DICT)), error
    dcp_word, error = outcome(file, checkpoint, "dcp")
    assert dcp_word == to_dcp, error
    if word == "no":
        return
    assert cairn.verify(file)
    assert not cairn.diff(file, file)
    assert cairn.diff(file, other)
    expected = foreign_files.content(foreign_files.read_state(file))
    copies = [copy]
    if dcp_word != "no":
        assert cairn.verify(checkpoint)
        assert bool(cairn.diff(file, checkpoint)) == (kind in COMPARED_BY_STORED_BYTES)
        copies.append(tmp_path / "back.pt")
        cairn.convert(checkpoint, copies[1], to="torch", allow_pickle=True)
    for made in copies:
        assert kind in COMPARED_BY_STORED_BYTES or not cairn.diff(file, made)
        assert cairn.verify(made)
        if kind not in LOSES_THE_CLASS:
            assert foreign_files.content(foreign_files.read_state(made)) == expected
    if word == "yes" and kind not in NEEDS_GLOBALS:
        torch.load(copy, weights_only=True)


def test_a_state_that_contains_itself(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.ones(3)}
    state["self"] = state
    state["list"] = [{"state": state}]
    torch.save(state, tmp_path / "a.pt")
    assert set(cairn.open(tmp_path / "a.pt")) == {"w", "self", "list"}
    assert cairn.verify(tmp_path / "a.pt")
    with pytest.raises(cairn.Error, match=r"contains itself.*key 'self'.*leave the key out"):
        cairn.convert(tmp_path / "a.pt", tmp_path / "b.pt", to="torch")
    cairn.convert(tmp_path / "a.pt", tmp_path / "b.pt", to="torch", keys=["w"])
    assert torch.load(tmp_path / "b.pt")["w"].tolist() == [1, 1, 1]
    cairn.convert(tmp_path / "a.pt", tmp_path / "c.pt", to="torch", allow_pickle=True)
    copy = torch.load(tmp_path / "c.pt", weights_only=False)
    assert copy["self"]["self"] is copy["self"]
    assert copy["list"][0]["state"]["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", foreign_files.OTHERS)
def test_another_file_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    foreign_files.OTHERS[kind](file)
    (told,) = rows("Other files")[kind]
    calls = (cairn.open, cairn.verify, lambda path: cairn.convert(path, tmp_path / "x.pt", to="torch"))
    for call in calls:
        with pytest.raises(cairn.Error, match=re.escape(told)):
            call(file)
