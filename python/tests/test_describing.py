"""Each kind of leaf of a nested state is saved alike on every path to the engine."""

import gc
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from same import assert_same, blank

import cairn

BASE = torch.arange(24, dtype=torch.float32).reshape(4, 6)
PLAIN = {
    "contiguous": BASE,
    "transposed": BASE.t(),
    "a part": BASE[1:, ::2],
    "expanded": torch.ones(1).expand(3),
    "a number": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
    "many dimensions": torch.arange(64).reshape([2] * 6),
    "Parameter": torch.nn.Parameter(BASE[0]),
    "bits": BASE[0].view(torch.bits8),
    "conjugate": torch.tensor([1 + 2j, 3j]).conj(),
    "negative": torch.tensor([1 + 2j, 3j]).conj().imag,
    "negative integers": torch._neg_view(torch.arange(3)),
}
HAS_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


@pytest.mark.parametrize(
    "exchange",
    [pytest.param(True, marks=pytest.mark.skipif(not HAS_EXCHANGE, reason="torch before 2.10")), False],
    ids=["exchange table", "attributes"],
)
def test_tensors_are_described_unchanged(exchange: bool, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if HAS_EXCHANGE and not exchange:
        monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    metadata = cairn.save(PLAIN, checkpoint_id=checkpoint)
    assert metadata.state_dict_metadata["Parameter"].properties.requires_grad
    assert not metadata.state_dict_metadata["contiguous"].properties.requires_grad
    expected = {key: tensor.detach().resolve_conj().resolve_neg() for key, tensor in PLAIN.items()}
    loaded = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
    cairn.load(loaded, checkpoint_id=checkpoint)
    assert_same(loaded, expected)
    loaded = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
    stock.load(loaded, checkpoint)
    assert_same(loaded, expected)
    assert cairn.verify(checkpoint)


class Labelled(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
def test_the_order_is_that_of_the_state(checkpoint: Path) -> None:
    state = {
        "path": Path("x"),
        "w": torch.ones(1),
        "step": 3,
        "labelled": torch.ones(1).as_subclass(Labelled),
        "nested": {"tuple": (1, torch.ones(1)), "b": torch.ones(1), "list": [None, {"text": "x"}], "set": {1}},
        "last": torch.ones(1),
    }
    metadata = cairn.save(state, checkpoint_id=checkpoint)
    expected = stock.save(state, checkpoint.with_name("stock"))
    assert list(metadata.state_dict_metadata) == list(expected.state_dict_metadata)


TWICE: dict[str, tuple[Any, Any]] = {
    "tensors": (torch.ones(1), torch.ones(1)),
    "values": (1, 2),
    "value and tensor": (1, torch.ones(1)),
    "tensor and value": (torch.ones(1), 1),
    "odd tensors": (torch.ones(1).as_subclass(Labelled), torch.ones(1).as_subclass(Labelled)),
    "objects": (Path("x"), Path("y")),
}


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
@pytest.mark.parametrize("values", TWICE.values(), ids=TWICE)
def test_no_two_leaves_share_a_name(values: tuple[Any, Any], checkpoint: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match=r"duplicated flatten key a\.b") as caught:
        cairn.save({"a.b": values[0], "a": {"b": values[1]}}, checkpoint_id=checkpoint)
    assert caught.value.key == "a.b"


class Lazy(Mapping[str, Any]):
    """Makes new tensors at each access, and keeps weak references to the tensors."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[torch.Tensor]] = []

    def __getitem__(self, key: str) -> torch.Tensor:
        tensor = torch.full((1000,), float(key))
        self.made.append(weakref.ref(tensor))
        return tensor

    def __iter__(self) -> Iterator[str]:
        return map(str, range(50))

    def __len__(self) -> int:
        return 50


def test_tensors_made_on_demand_live_until_written(checkpoint: Path) -> None:
    lazy = Lazy()
    cairn.save({"lazy": lazy}, checkpoint_id=checkpoint)
    expected = {str(i): torch.full((1000,), float(i)) for i in range(50)}
    loaded = {"lazy": blank(expected)}
    cairn.load(loaded, checkpoint_id=checkpoint)
    assert_same(loaded, {"lazy": expected})
    gc.collect()
    assert [made for made in lazy.made if made() is not None] == []


@pytest.mark.parametrize("pairs", [[1], [(1, 2, 3)], [("a",)]])
def test_a_mapping_of_no_pairs_is_an_error(pairs: list[Any], checkpoint: Path) -> None:
    class Broken(dict[str, Any]):
        def items(self) -> Any:
            return pairs

    with pytest.raises((TypeError, ValueError)):
        cairn.save({"broken": Broken()}, checkpoint_id=checkpoint)
    assert not checkpoint.exists()


def test_an_exception_of_a_mapping_reaches_the_caller(checkpoint: Path) -> None:
    class Broken(dict[str, Any]):
        def items(self) -> Any:
            yield "a", 1
            raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        cairn.save({"broken": Broken()}, checkpoint_id=checkpoint)


def test_a_warning_names_the_line_that_saved(checkpoint: Path) -> None:
    with pytest.warns(cairn.PickleWarning) as caught:
        cairn.save({"own": Labels()}, checkpoint_id=checkpoint)
    assert [warning.filename for warning in caught] == [__file__]


class Labels:
    """Used by one test only, because Cairn warns only once about each class."""
