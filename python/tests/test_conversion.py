"""Loads that change the dtype, compared bit by bit with torch's ``copy_``, for every pair of dtypes.

Not compared, because torch leaves the result to the machine:

* Real numbers outside the range of an integer dtype, infinities and NaN included: in C++ the conversion is undefined,
  and x86 and ARM differ. For uint8 torch converts through int64: values within the range of int64 are compared.
* The bits of a NaN in bfloat16: torch's loops over contiguous and over strided memory differ.
* The bits of a NaN in any float dtype, on processors for which torch has no half-precision instructions.

Cairn's results for the first two are equal on all machines, and tested here too.
"""

import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
from same import assert_same

import cairn

REAL_FLOATS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip
INTEGERS = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip
PART_OF_COMPLEX = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
NUMBERS = [*REAL_FLOATS, *INTEGERS, *PART_OF_COMPLEX, torch.bool]
OTHERS = [torch.float4_e2m1fn_x2]  # lacks a copy_ between the dtype and any of NUMBERS

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

has_half_instructions = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def random_bits(dtype: torch.dtype, count: int) -> torch.Tensor:
    torch.manual_seed(7)
    return torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype)


def every_code(dtype: torch.dtype) -> torch.Tensor:
    """Returns every element of a dtype of one or two bytes."""
    codes = torch.arange(256**dtype.itemsize, dtype=torch.int32)
    return codes.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype)


@cache
def numbers_of(dtype: torch.dtype) -> torch.Tensor:
    """Returns elements that are hard to convert. Each call returns equal bits."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype in PART_OF_COMPLEX:
        real = numbers_of(PART_OF_COMPLEX[dtype])
        torch.manual_seed(7)
        zeros = torch.zeros(4, dtype=real.dtype)
        real, imaginary = torch.cat([real, zeros]), torch.cat([real[torch.randperm(len(real))], zeros + 1])
        return torch.view_as_complex(torch.stack([real, imaginary], dim=-1))
    if dtype.itemsize <= 2:
        return every_code(dtype)
    if dtype not in REAL_FLOATS:
        near_powers = [2**k + d for k in range(8 * dtype.itemsize - 1) for d in (-1, 0, 1)]
        beyond_float = [2**24 + 1 + 2 * k for k in range(9)]
        return torch.cat([random_bits(dtype, 2000), torch.tensor([*near_powers, *beyond_float], dtype=dtype)])
    parts = [random_bits(dtype, 2000)]
    for small in REAL_FLOATS[2:]:
        # The small float's values, the midpoints between neighbouring values, and the neighbours of both in `dtype`.
        exact = every_code(small).double()
        exact = exact[exact.isfinite()].sort().values
        exact = torch.cat([exact, (exact[1:] + exact[:-1]) / 2])
        if small.itemsize == 2:
            exact = exact[::5]
        exact = exact.to(dtype)
        infinity = torch.tensor(torch.inf, dtype=dtype)
        parts += [exact, torch.nextafter(exact, infinity), torch.nextafter(exact, -infinity)]
    parts.append(
        torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 5e-324, 3.4028235677973366e38], dtype=dtype)
    )
    # Signalling NaNs, and the smallest and the largest payload.
    nans = {
        4: [0x7F800001, 0xFF800001, 0x7FBFFFFF, 0x7FFFFFFF, 0x7FA00000],
        8: [0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF],
    }
    parts.append(torch.tensor(nans[dtype.itemsize], dtype=torch.uint64).to(_unsigned(dtype)).view(dtype))
    return torch.cat(parts)


def _unsigned(dtype: torch.dtype) -> torch.dtype:
    return {4: torch.uint32, 8: torch.uint64}[dtype.itemsize]


def outside(source: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """Marks the elements for which torch leaves the resulting integer to the machine."""
    if target not in INTEGERS or not (source.is_floating_point() or source.is_complex()):
        return torch.zeros(len(source), dtype=torch.bool)
    value = (source.real if source.is_complex() else source).double().trunc()
    bounds = torch.iinfo(torch.int64 if target is torch.uint8 else target)
    return ~((value >= float(bounds.min)) & (value < float(bounds.max + 1)))


def load_as(target: torch.dtype, checkpoint: Path, sources: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    loaded = {key: torch.zeros(len(source), dtype=target) for key, source in sources.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cairn.ConversionWarning)
        cairn.load(loaded, checkpoint_id=checkpoint, allow_cast=True)
    return loaded


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the numbers of every dtype under the dtype's name."""
    directory = tmp_path_factory.mktemp("numbers") / "checkpoint"
    cairn.save({name(dtype): numbers_of(dtype) for dtype in NUMBERS}, checkpoint_id=directory)
    return directory


@pytest.mark.parametrize("target", NUMBERS, ids=name)
def test_every_dtype_is_converted_as_by_copy(target: torch.dtype, saved: Path) -> None:
    sources = {name(dtype): numbers_of(dtype) for dtype in NUMBERS}
    loaded = load_as(target, saved, sources)
    for key, source in sources.items():
        actual, expected = loaded[key], torch.zeros(len(source), dtype=target).copy_(source)
        compared = ~outside(source, target)
        assert compared.any()
        if target is torch.bfloat16 or not has_half_instructions:
            nan = expected.isnan()
            assert torch.equal(actual.isnan(), nan), key
            compared &= ~nan
        assert_same(actual[compared], expected[compared], key)


@pytest.mark.parametrize("target", INTEGERS[1:], ids=name)
def test_values_out_of_range_become_the_nearest_integer(target: torch.dtype, checkpoint: Path) -> None:
    values = [torch.inf, 1e30, -torch.inf, -1e30, torch.nan]
    sources = {
        name(dtype): torch.tensor(values, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)
    }
    sources["complex64"] = sources["float32"].to(torch.complex64)
    cairn.save(dict(sources), checkpoint_id=checkpoint)
    bounds = torch.iinfo(target)
    for actual in load_as(target, checkpoint, sources).values():
        assert actual.tolist() == [bounds.max, bounds.max, bounds.min, bounds.min, 0]


def test_every_nan_becomes_one_bfloat16(saved: Path) -> None:
    sources = {name(dtype): numbers_of(dtype) for dtype in REAL_FLOATS if dtype is not torch.bfloat16}
    for key, actual in load_as(torch.bfloat16, saved, sources).items():
        assert set(actual[actual.isnan()].view(torch.uint16).tolist()) <= {0x7FC0}, key


@pytest.mark.parametrize("other", OTHERS, ids=name)
def test_conversions_that_copy_refuses_are_unsupported(other: torch.dtype, checkpoint: Path) -> None:
    state = {name(dtype): torch.zeros(4, dtype=dtype) for dtype in NUMBERS}
    state["other"] = torch.zeros(4, dtype=torch.uint8).view(other)
    cairn.save(dict(state), checkpoint_id=checkpoint)
    for dtype in NUMBERS:
        number, element = torch.zeros(4, dtype=dtype), torch.zeros(4, dtype=torch.uint8).view(other)
        for key, target, source in [("other", number, element), (name(dtype), element, number)]:
            with pytest.raises(RuntimeError, match="not implemented"):
                target.copy_(source)
            with pytest.raises(cairn.Unsupported) as caught:
                cairn.load({key: target}, checkpoint_id=checkpoint, allow_cast=True)
            assert caught.value.key == key


def test_a_cast_from_complex_is_reported(checkpoint: Path) -> None:
    source = torch.tensor([1 + 2j, 3 - 4j])
    cairn.save({"x": source}, checkpoint_id=checkpoint)
    state = {"x": torch.zeros(2)}
    with pytest.raises(cairn.InvalidArgument, match="allow_cast"):
        cairn.load(state, checkpoint_id=checkpoint)
    with pytest.warns(cairn.ConversionWarning, match=r"'x' from torch.complex64 to torch.float32"):
        cairn.load(state, checkpoint_id=checkpoint, allow_cast=True)
    assert_same(state["x"], torch.tensor([1.0, 3.0]))
