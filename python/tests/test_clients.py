"""Programs that call torch.distributed.checkpoint themselves save and resume through Cairn, by one line of their user.

Torchrun runs each client by two ranks and then by three, through the phases of `clients/scenario.py`. What is looked at
here is its state in each of them, its files, and what reached Cairn's engine: a client that never does has failed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from safetensors.torch import load_file
from same import assert_same, blank
from test_cli import tool

import cairn

PROGRAMS = Path(__file__).parent / "clients"
HANG_SECONDS = 240  # ranks that wait for each other wait for ever
pytestmark = pytest.mark.slow

Calls = Mapping[str, tuple[list[str], list[str]]]


@dataclass(frozen=True, eq=False)
class Client:
    """A program of `clients/`, and what it makes of a path that it is told to save to."""

    name: str
    #: DCP's directories under that path; by their keys, what the states of `training.full_state` have as "model" or
    #: "optimizer".
    contents: Mapping[str, Mapping[str, str]]
    #: In each phase, which directories the engine saves to and which it loads from. Merging is for rank 0 alone.
    calls: Calls
    #: Of the client, beside DCP's in their directory.
    own_files: frozenset[str] = frozenset()
    #: The phase that ends as the checkpoint was that three ranks resume.
    resharded: str = "saved"
    #: Phases in which only some of Cairn's objects are in the place of DCP's, each with directories to itself.
    swaps: tuple[str, ...] = ()

    def merge(self, path: Path, into: Path) -> Any:
        """One file from sharded ones by the client's own tool, which has never heard of Cairn."""
        if self.name == "accelerate":
            run("-m", "accelerate.commands.accelerate_cli", "merge-weights", path, into)
            return load_file(into / "model.safetensors")
        run("-m", "lightning.fabric.utilities.consolidate_checkpoint", path, "--output_file", into)
        return torch.load(into, weights_only=False)  # the Trainer's own entries are objects of its own


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
    """A client that has gone through all phases, and the folder that it worked in."""

    client: Client
    folder: Path

    def state(self, phase: str) -> dict[str, Any]:
        """The whole state at the end of a phase, or the weights that the client merged."""
        return torch.load(self.folder / f"{phase}.state", weights_only=False)

    def saves(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The directories of DCP that are left, each with what it should hold."""
        swapped = [(swap, swap) for swap in self.client.swaps]
        for name, phase in (("ours", "saved"), ("stock", "resharded"), *swapped):
            state = self.state(phase)
            for part, keys in self.client.contents.items():
                yield self.folder / name / part, {key: state[kind] for key, kind in keys.items()}


@pytest.fixture(scope="module", params=[FABRIC, TRAINER, ACCELERATE], ids=lambda client: client.name)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    client: Client = request.param
    folder = tmp_path_factory.mktemp(client.name)
    program = PROGRAMS / f"{client.name}_job.py"
    launch = ("-m", "torch.distributed.run", "--standalone")
    run(*launch, "--nproc-per-node=2", program, "start", folder)
    run(*launch, "--nproc-per-node=3", program, "reshard", folder)
    return Played(client, folder)


def run(*arguments: object) -> None:
    """A Python program that must succeed. Told to end, torchrun ends its ranks; killed, it would leave them."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    pipe, join = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=pipe, stderr=join, text=True, env=environment) as process:
        try:
            output, _ = process.communicate(timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate()
            pytest.fail(f"hung: {command}\n{output}")
    assert process.returncode == 0, output


def in_order(value: Any) -> Any:
    """With the keys of mappings in order: DCP does not keep theirs."""
    if isinstance(value, Mapping):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(entry) for entry in value] if type(value) is list else value


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(played: Played) -> None:
    assert_same(played.state("resumed"), played.state("saved"))
    assert_same(played.state("continued"), played.state("uninterrupted"))
    with pytest.raises(AssertionError):  # there was something to resume
        assert_same(played.state("uninterrupted"), played.state("saved"))


def test_another_number_of_ranks_resumes(played: Played) -> None:
    assert_same(played.state("resharded"), played.state(played.client.resharded))


def test_it_loads_the_same_whatever_of_cairn_is_there(played: Played) -> None:
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


def test_torch_alone_reads_it(played: Played) -> None:
    for directory, expected in played.saves():
        state = blank(expected)
        stock.load(state, directory)
        assert_same(state, expected)


def test_the_client_merges_it_with_cairn_and_without(played: Played, tmp_path: Path) -> None:
    client = played.client
    part, keys = next(iter(client.contents.items()))
    state = played.state("saved")
    expected = state["model"] if client is ACCELERATE else {key: state[kind] for key, kind in keys.items()}
    merged = played.state("merged"), client.merge(played.folder / "ours" / part, tmp_path / "merged")
    for got in merged:
        assert_same(in_order({key: got[key] for key in expected}), in_order(expected))
