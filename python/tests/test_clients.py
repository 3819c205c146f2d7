"""Programs that call torch.distributed.checkpoint save and resume through Cairn, switched by one line of their user.

Each client runs on two ranks and then on three, through the phases of `clients/scenario.py`. The tests compare the
client's state in each phase, its files, and the directories that reached Cairn's engine. A client whose calls never
reach the engine fails.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commands
import pytest
import stock
import torch
from ranks import run_program
from safetensors.torch import load_file
from same import assert_same, blank
from test_cli import tool

import cairn

PROGRAMS = Path(__file__).parent / "clients"
pytestmark = pytest.mark.slow

Calls = Mapping[str, tuple[list[str], list[str]]]


@dataclass(frozen=True, eq=False)
class Client:
    """A program of `clients/`, and the layout of its checkpoints."""

    name: str
    #: DCP's directories below the client's path. Each maps a key of the directory to "model" or "optimizer", the key of
    #: the equal state in `training.full_state`.
    contents: Mapping[str, Mapping[str, str]]
    #: In each phase, the directories of the engine's saves and loads. Only rank 0 merges.
    calls: Calls
    #: The client's own files in DCP's directories.
    own_files: frozenset[str] = frozenset()
    #: The phase that ends with the state that three ranks resume.
    resharded: str = "saved"
    #: Phases in which Cairn replaces only some of DCP's objects. Each phase has its own directories.
    swaps: tuple[str, ...] = ()

    def merge(self, path: Path, into: Path) -> Any:
        """Merges sharded files into one file by the client's own tool, in a process without Cairn."""
        if self.name == "accelerate":
            commands.run(sys.executable, "-m", "accelerate.commands.accelerate_cli", "merge-weights", path, into)
            return load_file(into / "model.safetensors")
        tool_of_lightning = "lightning.fabric.utilities.consolidate_checkpoint"
        commands.run(sys.executable, "-m", tool_of_lightning, path, "--output_file", into)
        return torch.load(into, weights_only=False)  # the Trainer's own entries are objects of its classes


FABRIC = Client(
    "fabric",
    {"": {"model": "model", "optimizer": "optimizer"}},
    {
        "saved": (["ours", "ours"], []),
        "resumed": ([], ["ours", "ours"]),  # the model, then the optimizer
        "merged": ([], ["ours"]),
        "switched": (["stock"], ["stock", "stock"]),
        "resharded": (["stock"], ["ours", "ours"]),
    },
    frozenset({"meta.pt"}),
)
TRAINER = Client(
    "trainer",
    {"step=3.ckpt": {"state_dict": "model", "optimizer_0": "optimizer"}},
    {
        "saved": (["ours/step=1.ckpt", "ours/step=2.ckpt"], []),
        "uninterrupted": (["ours/step=3.ckpt", "ours/step=4.ckpt", "ours/step=5.ckpt"], []),
        "resumed": ([], ["ours/step=3.ckpt"] * 2),
        "continued": (["ours/step=4.ckpt", "ours/step=5.ckpt"], []),
        "merged": ([], ["ours/step=3.ckpt"]),
        "switched": (["stock/step=3.ckpt"], ["stock/step=3.ckpt"] * 2),
        "resharded": (["stock/step=3.ckpt"], ["ours/last.ckpt"] * 2),
    },
    frozenset({"meta.pt"}),
    resharded="uninterrupted",
)
_OURS = ["ours/pytorch_model_fsdp_0", "ours/optimizer_0"]
_STOCK = ["stock/pytorch_model_fsdp_0", "stock/optimizer_0"]
ACCELERATE = Client(
    "accelerate",
    {"pytorch_model_fsdp_0": {"model": "model"}, "optimizer_0": {"optimizer": "optimizer"}},
    {
        "saved": (_OURS * 2, []),
        "resumed": ([], _OURS),
        "merged": ([], _OURS[:1]),
        "switched": (_STOCK, _STOCK),
        "functions": (["functions/pytorch_model_fsdp_0", "functions/optimizer_0"], _OURS),
        "classes": (["classes/pytorch_model_fsdp_0", "classes/optimizer_0"], _OURS),
        "resharded": (_STOCK, _OURS),
    },
    swaps=("functions", "classes"),
)


@dataclass(frozen=True)
class Played:
    """A client after all phases, and the client's folder."""

    client: Client
    folder: Path

    def state(self, phase: str) -> dict[str, Any]:
        """Returns the whole state at the end of a phase, or the weights that the client merged."""
        return torch.load(self.folder / f"{phase}.state", weights_only=False)

    def saves(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yields each remaining directory of DCP with the state that the directory should hold."""
        swapped = [(swap, swap) for swap in self.client.swaps]
        for name, phase in (("ours", "saved"), ("stock", "resharded"), *swapped):
            state = self.state(phase)
            for part, keys in self.client.contents.items():
                yield self.folder / name / part, {key: state[kind] for key, kind in keys.items()}


@pytest.fixture(scope="module", params=[FABRIC, TRAINER, ACCELERATE], ids=lambda client: client.name)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    client: Client = request.param
    folder = tmp_path_factory.mktemp(client.name)
    preload = ("accelerate",) if client is ACCELERATE else ("lightning",)
    program = PROGRAMS / f"{client.name}_job.py"
    run_program(program, 2, "start", folder, preload=preload)
    run_program(program, 3, "reshard", folder, preload=preload)
    return Played(client, folder)


def in_order(value: Any) -> Any:
    """Sorts the keys of mappings: DCP does not keep their order."""
    if isinstance(value, Mapping):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(entry) for entry in value] if type(value) is list else value


def test_a_resumed_run_equals_an_uninterrupted_run(played: Played) -> None:
    assert_same(played.state("resumed"), played.state("saved"))
    assert_same(played.state("continued"), played.state("uninterrupted"))
    with pytest.raises(AssertionError):  # the training changed the state after the save
        assert_same(played.state("uninterrupted"), played.state("saved"))


def test_another_number_of_ranks_resumes(played: Played) -> None:
    assert_same(played.state("resharded"), played.state(played.client.resharded))


def test_the_client_loads_equal_states_with_and_without_cairn(played: Played) -> None:
    for phase in ("without", "switched", *played.client.swaps):
        assert_same(played.state(phase), played.state("saved"), phase)


def test_all_saves_and_loads_reach_the_engine(played: Played) -> None:
    for ranks, rank in ((2, 0), (2, 1), (3, 0), (3, 1), (3, 2)):
        calls = json.loads((played.folder / f"calls-{rank}-of-{ranks}.json").read_text())
        expected = {phase: list(played.client.calls.get(phase, ([], []))) for phase in calls}
        if rank > 0 and "merged" in calls:
            expected["merged"] = [[], []]
        assert calls == expected, f"rank {rank} of {ranks}"
        assert ("resharded" in calls) == (ranks == 3)


def test_the_last_save_is_all_that_is_left_beside_the_clients_own_files(played: Played) -> None:
    for directory, _ in played.saves():
        data_files = {info.relative_path for info in stock.metadata_of(directory).storage_data.values()}
        assert len(data_files) == (3 if directory.is_relative_to(played.folder / "stock") else 2)
        assert {path.name for path in directory.iterdir()} == {".metadata", *data_files, *played.client.own_files}
        assert cairn.open(directory).save_id is not None
        done = subprocess.run([tool(), "verify", directory], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_torch_alone_reads_the_checkpoint(played: Played) -> None:
    for directory, expected in played.saves():
        state = blank(expected)
        stock.load(state, directory)
        assert_same(state, expected)


def test_the_client_merges_the_checkpoint_with_and_without_cairn(played: Played, tmp_path: Path) -> None:
    client = played.client
    part, keys = next(iter(client.contents.items()))
    state = played.state("saved")
    expected = state["model"] if client is ACCELERATE else {key: state[kind] for key, kind in keys.items()}
    merged = played.state("merged"), client.merge(played.folder / "ours" / part, tmp_path / "merged")
    for got in merged:
        assert_same(in_order({key: got[key] for key in expected}), in_order(expected))
