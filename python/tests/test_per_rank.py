"""Values that differ between ranks: PerRank keeps each rank's value, and random states come back."""

import copy
import random
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stock
import tool
import torch
import torch.distributed as dist
from ranks import Gang, run_program
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager

import cairn
from cairn import AsyncCheckpointerType, PerRank


def state_of(rank: int, otherwise: Any = "error") -> dict[str, Any]:
    """A state whose PerRanks hold a tensor, a value, and a nested container, which differ by rank."""
    return {
        "weight": torch.arange(6.0),
        "step": 7,
        "position": PerRank(100 + rank, otherwise),
        "buffer": PerRank(torch.full((3, rank + 1), float(rank)), otherwise),
        "nest": [{"loader": PerRank({"epoch": rank, "seen": [torch.tensor([rank]), (rank, "x")]}, otherwise)}],
    }


def blank_of(source: int, otherwise: Any = "error") -> dict[str, Any]:
    """A target for the state of rank `source`."""
    state = state_of(source, otherwise)
    state["weight"].zero_()
    state["step"] = 0
    state["position"].value = -1
    state["buffer"].value.fill_(-1)
    nest = state["nest"][0]["loader"].value
    nest["epoch"] = -1
    nest["seen"][0].fill_(-1)
    nest["seen"][1] = None
    return state


def assert_of(state: dict[str, Any], source: int) -> None:
    wanted = state_of(source)
    assert torch.equal(state["weight"], wanted["weight"]) and state["step"] == 7
    assert state["position"].value == 100 + source
    assert torch.equal(state["buffer"].value, wanted["buffer"].value)
    nest, expected = state["nest"][0]["loader"].value, wanted["nest"][0]["loader"].value
    assert nest["epoch"] == source and nest["seen"][1] == (source, "x")
    assert torch.equal(nest["seen"][0], expected["seen"][0])


def save_by(way: str, directory: Path) -> None:
    state = state_of(dist.get_rank())
    before = copy.deepcopy(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # PerRank values are expected to differ
        if way == "save":
            cairn.save(state, checkpoint_id=directory)
        elif way == "thread":
            cairn.async_save(state, checkpoint_id=directory).result()
        elif way == "process":
            kind = AsyncCheckpointerType.PROCESS
            cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind).result()
        elif way == "planner":
            cairn.save(state, checkpoint_id=directory, planner=PlannerOfTheCaller())
        elif way == "stock":
            stock.dcp.save(state, checkpoint_id=directory)
        elif way == "stager":
            cairn.async_save(state, checkpoint_id=directory, async_stager=StagerOfTheCaller()).result()
        else:
            cairn.install()
            try:
                stock.dcp.save(state, checkpoint_id=directory)
            finally:
                cairn.uninstall()
    assert isinstance(state["position"], PerRank)
    assert state["position"].value == before["position"].value


def load_into(directory: Path, rule: str, installed: bool = False) -> int:
    """Loads by the rule, checks the values, and returns the rank whose values this rank got."""
    rank = dist.get_rank()
    keys = [key for key in cairn.open(directory) if key.startswith("position.")]
    saved = sorted(int(key.removeprefix("position.__rank_")) for key in keys)
    source = rank if rank in saved else {"modulo": saved[rank % len(saved)], "first": saved[0]}[rule]
    state = blank_of(source, rule)
    if installed:
        cairn.install()
        try:
            stock.dcp.load(state, checkpoint_id=directory)
        finally:
            cairn.uninstall()
    else:
        cairn.load(state, checkpoint_id=directory)
    assert_of(state, source)
    assert state["position"].key == f"__rank_{rank}"  # a later save stores the rank's own entry
    return source


def load_and_report(directory: Path, rule: Any, planner: Any = None) -> str:
    state = blank_of(dist.get_rank(), rule)
    before = copy.deepcopy(state)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", cairn.IgnoredKeysWarning)
            cairn.load(state, checkpoint_id=directory, planner=planner)
    except cairn.MissingKey as error:
        return str(error)
    assert state["step"] == 7
    if dist.get_rank() == 2:  # without a value in the checkpoint: nothing changed
        assert state["position"].value == -1
        assert torch.equal(state["buffer"].value, before["buffer"].value)
    else:
        assert_of(state, dist.get_rank())
    return ""


class PlannerOfTheCaller(DefaultSavePlanner):
    """The engine does not know this planner: torch's code plans."""

    def resolve_data(self, write_item: Any) -> Any:
        return super().resolve_data(write_item)


class LoadPlannerOfTheCaller(DefaultLoadPlanner):
    """Likewise."""

    def resolve_tensor(self, read_item: Any) -> Any:
        return super().resolve_tensor(read_item)


class StagerOfTheCaller(BlockingAsyncStager):
    """The engine does not know this stager: torch's code copies dicts and lists."""

    def stage(self, state_dict: Any) -> Any:
        return super().stage(state_dict)


@pytest.mark.parametrize("way", ["save", "thread", "process", "install", "planner", "stager", "stock"])
def test_four_ranks_then_two_then_three_get_their_values(
    way: str, four: Gang, two: Gang, three: Gang, checkpoint: Path, tmp_path: Path
) -> None:
    four.run(save_by, way, checkpoint)
    assert two.run(load_into, checkpoint, "modulo", way == "install") == [0, 1]
    if way == "stock":
        two.run(load_by_stock, checkpoint)
    second = tmp_path / "second"
    two.run(save_by, way, second)
    assert three.run(load_into, second, "modulo", way == "install") == [0, 1, 0]
    assert three.run(load_into, second, "first") == [0, 1, 0]
    for rank in range(4):  # stock torch reads the value of any rank under the documented key
        value = blank_of(rank)
        loader = value["nest"][0]["loader"].value
        names = {
            "position": {f"__rank_{rank}": -1},
            "buffer": {f"__rank_{rank}": value["buffer"].value},
            "nest": [{"loader": {f"__rank_{rank}": loader}}],
        }
        stock.load(names, checkpoint)
        assert names["position"] == {f"__rank_{rank}": 100 + rank}
        assert torch.equal(value["buffer"].value, state_of(rank)["buffer"].value)
        assert loader["epoch"] == rank and loader["seen"][1] == (rank, "x")


def load_by_stock(directory: Path) -> None:
    state = blank_of(dist.get_rank())
    stock.dcp.load(state, checkpoint_id=directory)
    assert_of(state, dist.get_rank())


def load_by_a_planner(directory: Path) -> None:
    state = blank_of(dist.get_rank())
    cairn.load(state, checkpoint_id=directory, planner=LoadPlannerOfTheCaller())
    assert_of(state, dist.get_rank())


def test_a_rank_without_a_value_is_an_error_on_all_ranks_or_keeps_its_own(
    two: Gang, three: Gang, checkpoint: Path
) -> None:
    two.run(save_by, "save", checkpoint)
    texts = three.run(load_and_report, checkpoint, "error")
    for text in texts:
        assert "buffer.__rank_2" in text and "the values of 2 ranks (0, 1)" in text and "modulo" in text
    assert three.run(load_and_report, checkpoint, "keep") == ["", "", ""]
    partial = DefaultLoadPlanner(allow_partial_load=True)
    assert three.run(load_and_report, checkpoint, "error", partial) == ["", "", ""]
    two.run(load_by_a_planner, checkpoint)


def test_a_checkpoint_without_values_of_ranks_names_the_key(tmp_path: Path) -> None:
    cairn.save({"position": 5, "step": 1}, checkpoint_id=tmp_path)
    state = {"position": PerRank(0), "step": 0}
    with pytest.raises(cairn.MissingKey, match=r"position\.__rank_0; no rank has a value under 'position'"):
        cairn.load(state, checkpoint_id=tmp_path)
    state["position"] = PerRank(0, "keep")
    cairn.load(state, checkpoint_id=tmp_path)
    assert state["step"] == 1


def test_the_tool_and_open_show_the_keys(tmp_path: Path) -> None:
    for name, position in (("a", 7), ("b", 8)):
        cairn.save({"loader": PerRank({"position": position}), "t": torch.ones(2)}, checkpoint_id=tmp_path / name)
    assert sorted(cairn.open(tmp_path / "a")) == ["loader.__rank_0.position", "t"]
    assert "loader.__rank_0.position" in tool.text_of("ls", tmp_path / "a")
    difference = tool.run("diff", tmp_path / "a", tmp_path / "b")
    assert difference.returncode == 1 and b"loader.__rank_0.position" in difference.stdout
    cairn.convert(tmp_path / "a", tmp_path / "a.pt", to="torch")
    assert torch.load(tmp_path / "a.pt")["loader"] == {"__rank_0": {"position": 7}}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"pair": (1, PerRank(2))}, "inside of a value"),
        ({"a": PerRank(1), "a.__rank_0": 2}, "a.__rank_0"),
    ],
    ids=["in a tuple", "a taken key"],
)
def test_a_state_that_would_lose_a_value_is_refused(state: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match=text):
        cairn.save(state, checkpoint_id=tmp_path / "checkpoint")


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(cairn.InvalidArgument, match=r"Linear's state_dict\(\)"):
        PerRank(torch.nn.Linear(1, 1))
    with pytest.raises(cairn.InvalidArgument, match="PerRank can't hold"):
        PerRank(PerRank(1))
    with pytest.raises(cairn.InvalidArgument, match="no such rule"):
        PerRank(1, "nearest")  # type: ignore[arg-type]


def draw() -> tuple[Any, ...]:
    return random.random(), random.gauss(0, 1), float(np.random.rand()), np.random.randn(), torch.rand(3).tolist()


def draw_after_a_save(directory: Path) -> tuple[Any, ...]:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    draw()
    cairn.save({"random": cairn.random_states()}, checkpoint_id=directory)
    return draw()


def draw_after_a_load(directory: Path) -> tuple[Any, ...]:
    state = {"random": cairn.random_states()}
    cairn.load(state, checkpoint_id=directory)
    cairn.set_random_states(state["random"])
    assert not torch.cuda.is_initialized()
    return draw()


def test_random_states_of_each_rank_come_back_in_another_process(two: Gang, four: Gang, checkpoint: Path) -> None:
    drawn = four.run(draw_after_a_save, checkpoint)
    assert len({numbers[0] for numbers in drawn}) == 4
    assert two.run(draw_after_a_load, checkpoint) == drawn[:2]


def test_random_states_are_read_by_stock_and_by_open(tmp_path: Path) -> None:
    cairn.save({"random": cairn.random_states()}, checkpoint_id=tmp_path)
    value: dict[str, Any] = {"random": {"__rank_0": None}}
    stock.load(value, tmp_path)
    assert value["random"]["__rank_0"] == cairn.open(tmp_path)["random.__rank_0"]


def test_a_process_without_numpy_has_no_state_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    assert [name for name, _ in cairn.random_states().value] == ["python", "torch"]


def test_states_that_do_not_fit_change_nothing() -> None:
    states = dict(cairn.random_states().value)
    words, _, has_gauss, gauss = states["numpy"]
    before = draw_and_restore()
    for wrong in (
        7,
        (("other", 1),),
        (("python", (3, (1, 2), None)),),
        (("python", states["python"]), ("numpy", (words, 625, has_gauss, gauss))),
        (("python", states["python"]), ("torch", b"short")),
    ):
        with pytest.raises(cairn.InvalidArgument, match="no random states"):
            cairn.set_random_states(wrong)
    assert draw_and_restore() == before


def draw_and_restore() -> tuple[Any, ...]:
    states = cairn.random_states()
    numbers = draw()
    cairn.set_random_states(states)
    return numbers


def test_states_of_cuda_without_cuda_warn() -> None:
    states = (*cairn.random_states().value, ("cuda", (bytes(16),)))
    with pytest.warns(RuntimeWarning, match="not initialised CUDA"):
        cairn.set_random_states(states)
    assert not torch.cuda.is_initialized()


# The saves of a job, whose states hold values that differ in some of the saves.
JOB = """
import sys
import warnings
import torch
import torch.distributed as dist
import cairn
from cairn import AsyncCheckpointerType

dist.init_process_group("gloo")
rank, directory, way = dist.get_rank(), sys.argv[1], sys.argv[2]
kinds = {"thread": AsyncCheckpointerType.THREAD, "process": AsyncCheckpointerType.PROCESS}

def save(step, position):
    state = {
        "step": step,
        "loader": {"position": position},
        "small": torch.full((9,), float(position)),
        "large": torch.full((5000,), float(rank)),
        "own": {"rank": cairn.PerRank(rank)},
        f"stage {rank}": {"lr": rank},
        "app": {f"of rank {rank}": rank, "seed": position},
    }
    if rank != 0:
        state["app"]["of two"] = position
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way == "save":
            cairn.save(state, checkpoint_id=f"{directory}/{step}")
        else:
            call = cairn.async_save(
                state, checkpoint_id=f"{directory}/{step}", async_checkpointer_type=kinds[way]
            )
            call.result()
            cairn._async.pending_saves.wait_for()
        dist.barrier()
    for warning in caught:
        if "different values" in str(warning.message):
            print(step, warning.message, flush=True)

plan = sys.argv[3]
if plan == "resume":
    state = {"step": 0, "loader": {"position": 0}, "small": torch.zeros(9), "large": torch.zeros(5000)}
    state |= {"own": {"rank": cairn.PerRank(0)}, f"stage {rank}": {"lr": 0}}
    state["app"] = {f"of rank {rank}": 0, "seed": 0} | ({"of two": 0} if rank != 0 else {})
    cairn.load(state, checkpoint_id=f"{directory}/1")
    save(5, rank)
else:
    save(1, rank if plan == "first" else 3)
    save(2, 3)
    save(3, rank if plan == "later" else 3)
    save(4, 2 * rank if plan == "later" else 3)
dist.destroy_process_group()
"""


def test_equal_sets_of_texts_have_equal_bytes_in_all_processes(tmp_path: Path) -> None:
    cairn.save({"names": {f"name-{i}" for i in range(100, 200)}}, checkpoint_id=tmp_path)
    content = (tmp_path / "__0_0.distcp").read_bytes()
    places = [content.index(b"name-%d" % i) for i in range(100, 200)]
    assert places == sorted(places)
    assert len(cairn.open(tmp_path)["names"]) == 100


@pytest.mark.parametrize("way", ["save", "thread", "process"])
def test_values_that_differ_are_named_once(way: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(JOB)
    directory = tmp_path / "run"
    directory.mkdir()
    assert run_program(program, 3, directory, way, "equal") == ""
    for plan, step in (("resume", 5), ("first", 1), ("later", 3)):
        lines = run_program(program, 3, directory, way, plan).splitlines()
        assert len(lines) == 1, lines
        told, _, advice = lines[0].partition(", and the checkpoint")
        assert told.startswith(f"{step} the ranks have different values under '")
        keys = set(re.findall("'([^']+)'", told))
        # After a resume, the ranks know no keys of some ranks, nor keys beside these.
        assert keys == {"loader.position", "small"} | (set() if plan == "resume" else {"app.seed", "app.of two"})
        assert "cairn.PerRank(value)" in advice


class FakeDevices:
    """CUDA's generators of three devices, by number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, current: int) -> None:
        self.states = {number: torch.full((16,), number, dtype=torch.uint8) for number in range(3)}
        cpu_generator = torch.Generator
        monkeypatch.setattr(torch, "Generator", lambda *device: cpu_generator() if not device else self)
        for name in ("get_rng_state", "set_rng_state"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        for name, value in {"is_initialized": True, "device_count": 3, "current_device": current}.items():
            monkeypatch.setattr(torch.cuda, name, lambda value=value: value)

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        assert device.index is not None
        return self.states[device.index].clone()

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        assert device.index is not None
        self.states[device.index] = state.clone()

    def set_state(self, state: torch.Tensor) -> None:
        assert state.dtype is torch.uint8 and state.numel() == 16


def test_states_of_cuda_follow_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = FakeDevices(monkeypatch, current=1)
    states = cairn.random_states()
    assert [state[0] for state in dict(states.value)["cuda"]] == [1, 2, 0]
    restored = FakeDevices(monkeypatch, current=2)  # another rank of the host: its device is another one
    cairn.set_random_states(states)
    assert {number: int(state[0]) for number, state in restored.states.items()} == {2: 1, 0: 2, 1: 0}
    assert {number: int(state[0]) for number, state in saved.states.items()} == {0: 0, 1: 1, 2: 2}
