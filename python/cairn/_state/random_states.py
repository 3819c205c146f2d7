"""The random states of a process: those of torch, of NumPy, of Python, and of CUDA.

A state is a tuple of pairs of a name and plain data, stored under one key: stock torch and Cairn read it without
running code, and also a process whose generators differ from those of the process that saved. The pairs:

``("python", random.getstate())``; ``("numpy", (the 624 words as a tuple, position, has_gauss, gauss))``;
``("torch", bytes)``; ``("cuda", (bytes, ...))``, an entry for each device: the current device, then the devices of the
next numbers, and after the last device those from 0 on.
"""

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from cairn._state.per_rank import Otherwise, PerRank
from cairn.errors import InvalidArgument, Unsupported

_WORDS = 624  # of a Mersenne Twister


def random_states(otherwise: Otherwise = "error") -> PerRank:
    """Returns the states of the global random generators of this process, for a state dict: torch's, Python's, NumPy's
    if the process has imported NumPy, and those of the CUDA devices if the process has initialised CUDA.

    The states are copies. `otherwise` is for a load into more ranks, as in :class:`cairn.PerRank`; ranks with the
    states of one rank draw equal numbers. Never initialises CUDA. Raises Unsupported if NumPy's global generator is not
    the Mersenne Twister::

        state = {"model": model.state_dict(), "random": cairn.random_states()}
        cairn.load(state, checkpoint_id="run/step-1000")
        cairn.set_random_states(state["random"])
    """
    states: list[tuple[str, Any]] = [("python", random.getstate())]
    if "numpy" in sys.modules:
        states.append(("numpy", _of_numpy()))
    states.append(("torch", _bytes_of(torch.get_rng_state())))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(("cuda", tuple(_bytes_of(torch.cuda.get_rng_state(device)) for device in _cuda_devices())))
    return PerRank(tuple(states), otherwise)


def set_random_states(states: Any) -> None:
    """Sets the global random generators of this process to the states of :func:`random_states`, or to the states that
    ``cairn.load`` put into their place.

    Generators whose state is missing keep theirs. If CUDA is not initialised in this process, warns and leaves CUDA's
    generators alone. CUDA devices without a saved state keep theirs. Raises InvalidArgument, before any generator
    changes, for other objects and for states that do not fit.
    """
    given: Any = states.value if isinstance(states, PerRank) else states
    try:
        restoring = [_RESTORERS[name](state) for name, state in given]
    except (TypeError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise InvalidArgument(
            "these are no random states", expected="the result of cairn.random_states(), saved and loaded"
        ) from error
    for restore in restoring:
        restore()


def _of_numpy() -> tuple[Any, ...]:
    from numpy.random import get_state

    state = get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise Unsupported(
            "the state of NumPy's global generator can't be saved by random_states()",
            expected="MT19937",
            actual=str(state["bit_generator"]),
        )
    inner = state["state"]
    words = tuple(inner["key"].tolist())
    return words, int(inner["pos"]), int(state["has_gauss"]), float(state["gauss"])


def _restoring_python(state: Any) -> Callable[[], None]:
    random.Random().setstate(state)  # raises for states that do not fit
    return lambda: random.setstate(state)


def _restoring_numpy(state: Any) -> Callable[[], None]:
    import numpy as np

    words, position, has_gauss, gauss = state
    if len(words) != _WORDS or not 0 <= position <= _WORDS:  # NumPy reads a word at any position
        raise ValueError(state)
    legacy = ("MT19937", np.array(words, dtype=np.uint32), position, has_gauss, gauss)
    np.random.RandomState().set_state(legacy)
    return lambda: np.random.set_state(legacy)


def _restoring_torch(state: bytes) -> Callable[[], None]:
    tensor = _tensor_of(state)
    torch.Generator().set_state(tensor)
    return lambda: torch.set_rng_state(tensor)


def _restoring_cuda(states: tuple[bytes, ...]) -> Callable[[], None]:
    tensors = [_tensor_of(state) for state in states]
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return lambda: warnings.warn(
            "the states of CUDA's generators were not restored, because this process has not initialised CUDA: call "
            "set_random_states() after the first use of CUDA",
            RuntimeWarning,
            stacklevel=3,
        )
    pairs = list(zip(_cuda_devices(), tensors, strict=False))
    for device, tensor in pairs:
        torch.Generator(device).set_state(tensor)

    def restore() -> None:
        for device, tensor in pairs:
            torch.cuda.set_rng_state(tensor, device)

    return restore


_RESTORERS: dict[str, Callable[[Any], Callable[[], None]]] = {
    "python": _restoring_python,
    "numpy": _restoring_numpy,
    "torch": _restoring_torch,
    "cuda": _restoring_cuda,
}


def _cuda_devices() -> list[torch.device]:
    """Returns the devices, from the current device on."""
    count, current = torch.cuda.device_count(), torch.cuda.current_device()
    return [torch.device("cuda", (current + i) % count) for i in range(count)]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.tolist())


def _tensor_of(state: bytes) -> torch.Tensor:
    return torch.tensor(list(state), dtype=torch.uint8, device="cpu")
