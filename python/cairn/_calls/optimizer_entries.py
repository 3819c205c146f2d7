"""The saved entries of an optimizer that the optimizer's own ``state_dict()`` lacks, as targets of a load.

An optimizer of torch has no state before its first step. The ``state_dict()`` of a new optimizer therefore has no place
for the saved moments, and a load by that dict would leave the moments out. A load gives the optimizer all saved entries
below its key: a parameter's state is sharded as the parameter is, and lies on the parameter's device.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from cairn import _engine
from cairn._state.flattening import Path, flatten, saved_keys
from cairn._state.key_terms import OpenCheckpoint, paths_of
from cairn._state.local_shard import CHUNK_LIST
from cairn._state.tensors import is_sharded
from cairn._state.torch_codes import DTYPES, dtype_name
from cairn.errors import Unsupported

_STATE = "state"
_GROUPS = "param_groups"
_PARAMETERS = "params"
_STEP = "step"  # the count of steps: torch keeps the count on the CPU, or moves it when the optimizer gets its state


class _Saved(NamedTuple):
    """A key of the checkpoint: its place below the optimizer's key, and dtype code and shape of a tensor."""

    fqn: str
    place: Path
    code: int | None
    shape: tuple[int, ...] | None


def add_saved_entries(
    states: Mapping[str, Any],
    optimizers: Mapping[str, torch.optim.Optimizer],
    checkpoint: OpenCheckpoint,
    takes: Callable[[str], bool],
) -> None:
    """Adds to the state dicts that `states` has for `optimizers` the entries that only the checkpoint has, and that the
    load `takes`.

    State dicts of another form than that of ``torch.optim.Optimizer.state_dict()`` stay unchanged. Raises Unsupported
    for a state that only the optimizer can make: the state of a sharded parameter in another shape than the
    parameter's, and tensors of 8 bits or fewer that pass for tensors of 32 bits.
    """
    for key, optimizer in optimizers.items():
        state = states[key]
        if _lacks_state(state):
            parameters = _by_number(state, optimizer)
            is_torchs = type(optimizer).__module__.startswith("torch.optim.")
            for saved in filter(lambda it: takes(it.fqn), _only_in_checkpoint(key, state, checkpoint)):
                if not is_torchs and _is_packed(saved, checkpoint):
                    raise _without_state(saved, f"has a form that only {type(optimizer).__name__} makes")
                _add(state, saved, _target(saved, parameters))


def _lacks_state(state: Any) -> bool:
    """Returns whether `state` has the form of ``Optimizer.state_dict()``, and no entry for one of the parameters."""
    if not isinstance(state, dict) or type(state.get(_STATE)) is not dict or type(state.get(_GROUPS)) is not list:
        return False
    numbers: list[Any] = []
    for group in state[_GROUPS]:
        if not isinstance(group, dict) or type(group.get(_PARAMETERS)) is not list:
            return False
        numbers += group[_PARAMETERS]
    return all(type(number) is int for number in numbers) and any(number not in state[_STATE] for number in numbers)


def _by_number(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[int, torch.Tensor]:
    numbers = [number for group in state[_GROUPS] for number in group[_PARAMETERS]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group[_PARAMETERS]]
    return dict(zip(numbers, parameters, strict=False))


def _only_in_checkpoint(key: str, state: dict[str, Any], checkpoint: OpenCheckpoint) -> list[_Saved]:
    """Returns the saved entries below `key` that `state` lacks, in an order in which lists grow at their ends."""
    present = {leaf.fqn for leaf in flatten({key: state})}
    paths: dict[str, Path] | None = None
    saved = []
    for fqn, code, shape in saved_keys(checkpoint):
        if not fqn.startswith(f"{key}.") or fqn in present:
            continue
        place: Path = tuple(fqn.removeprefix(f"{key}.").split("."))
        if place[0] != _STATE or len(place) != 3:  # only the recorded path tells a list from a name with a dot
            paths = paths_of(checkpoint) if paths is None else paths
            recorded = paths.get(fqn, ())
            place = recorded[1:] if recorded[:1] == (key,) and len(recorded) > 1 else place
        saved.append(_Saved(fqn, place, code, shape))
    return sorted(saved, key=lambda entry: [(type(step) is str, step) for step in entry.place])


def _is_packed(saved: _Saved, checkpoint: OpenCheckpoint) -> bool:
    """Returns whether a saved tensor takes fewer bytes than its elements: the tensor is of a class that packs them."""
    tensor = None if saved.code is None or saved.shape is None else checkpoint.tensor(saved.fqn)
    if tensor is None:
        return False
    code, shape, _, chunks, _ = tensor
    return sum(length for *_, length in chunks) < math.prod(shape) * _engine.DTYPE_ITEM_BYTES[code]


def _target(saved: _Saved, parameters: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """Returns a new tensor for a saved tensor, and None for a saved value."""
    if saved.code is None or saved.shape is None:
        return None
    if saved.code not in DTYPES:
        name = dtype_name(saved.code)
        raise Unsupported(f"this torch has no {name}: '{saved.fqn}'", key=saved.fqn, actual=name)
    number = _parameter_number(saved.place)
    parameter = None if number is None else parameters.get(number)
    if parameter is not None and saved.place[-1] != _STEP:
        if tuple(parameter.shape) == saved.shape:
            return _like(parameter, saved)
        if math.prod(saved.shape) > 1 and _is_distributed(parameter):
            raise _without_state(saved, f"belongs to a sharded parameter of shape {tuple(parameter.shape)}")
    if saved.place[0] == _STATE and number is None and any(map(_is_distributed, parameters.values())):
        raise _without_state(saved, "was saved under the name of a parameter that may be sharded")
    return torch.empty(saved.shape, dtype=DTYPES[saved.code], device="cpu")


def _is_distributed(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, CHUNK_LIST) or is_sharded(parameter)


def _like(parameter: torch.Tensor, saved: _Saved) -> torch.Tensor:
    assert saved.code is not None
    try:
        with torch.no_grad():
            return torch.empty_like(parameter, dtype=DTYPES[saved.code], requires_grad=False)
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:  # a class of the caller's
        raise _without_state(
            saved, f"belongs to a {type(parameter).__name__}, which makes no tensor: {error}"
        ) from error


def _without_state(saved: _Saved, reason: str) -> Unsupported:
    return Unsupported(
        f"the optimizer has no state yet, and '{saved.fqn}', of shape {saved.shape}, {reason}. Make the state before "
        "the load: cairn.state_dict.get_state_dict does",
        key=saved.fqn,
    )


def _parameter_number(place: Path) -> int | None:
    is_state = len(place) > 2 and place[0] == _STATE  # state, number of the parameter, name
    step = place[1] if is_state else None
    return int(step) if isinstance(step, str) and step.isascii() and step.isdigit() else None


def _add(state: dict[Any, Any], saved: _Saved, target: torch.Tensor | None) -> None:
    """Puts the target in its place, and makes the containers above. Does nothing if the place is taken, or lies below
    an entry that is no container."""
    number = _parameter_number(saved.place)
    place = saved.place if number is None else (_STATE, number, *saved.place[2:])
    container: Any = state
    for depth, step in enumerate(place):
        below = place[depth + 1 : depth + 2]
        is_list = below and type(below[0]) is int and place[: depth + 1] != (_STATE,)
        made: Any = ([] if is_list else {}) if below else target
        if isinstance(container, list) and type(step) is int and step <= len(container):
            container += [made] if step == len(container) else []
            container = container[step]
        elif isinstance(container, dict):
            container = container.setdefault(step, made)
        else:
            return
