"""cairn.load_model: fills a model from a checkpoint, and gives memory to what the model has on the meta device.

1. The entries of the model's ``state_dict()`` on the meta device are replaced by new tensors without values.
2. The load reads into the new tensors, and in place into all other tensors of the model.
3. The new tensors take the places of the meta tensors in the model.
4. Buffers that no state dict has get memory, and the caller's function computes their values.

No element of the model has a second copy in memory. A failure before step 3 leaves the model as it was, but for the
tensors that had memory.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from cairn._calls.arguments import Call
from cairn._calls.load import LoadRules, load_from_all
from cairn._calls.split_keys import SplitKeys, opened
from cairn._calls.state_load import new_tensor
from cairn._state.key_terms import KeyTerms, LoadedKeys, Renames
from cairn._telemetry import dcp_records
from cairn.checkpoint import Verify
from cairn.errors import InvalidArgument
from cairn.filesystem import load_options

_Path = str | os.PathLike[str]
_NAMED_MAX = 4  # buffers that an error names


def load_model(  # noqa: PLR0913 - most are those of load
    model: nn.Module,
    checkpoint_id: _Path | None = None,
    *,
    key: str = "",
    device: torch.device | str | None = None,
    init_buffers: Callable[[nn.Module], object] | None = None,
    storage_reader: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    allow_pickle: bool | None = None,
    allow_cast: bool | None = None,
    verify: Verify = "needed",
    follow_links: bool | None = None,
    strict: bool = True,
    renames: Renames = (),
    keys: Iterable[str] = (),
    base: _Path | None = None,
    base_renames: Renames = (),
) -> LoadedKeys | None:
    """Fills `model` from a checkpoint. Parameters and buffers on the meta device get memory on `device`, and the load
    reads straight into it: the model never has a second copy.

    `key` is the key of the model's state dict in the checkpoint: "model" for a save of ``{"model": model}``. The
    default takes the keys at the top. `device` None means the device of the process group, or the CPU in a process
    without one; DTensors, as of FSDP2 on the meta device, are placed by their meshes. Parameters that share a tensor
    share the new one, and need one of their keys in the checkpoint. Parameters and buffers that have memory are filled
    in place.

    Buffers that are not persistent are in no checkpoint. If the model has some on the meta device, `init_buffers` must
    compute them: load_model() gives them memory without values and calls ``init_buffers(module)`` for each module that
    has such buffers. Without `init_buffers` such a model raises InvalidArgument.

    The other arguments, the result and the errors are those of :func:`cairn.load`. With ``strict=False`` parameters
    that the checkpoint lacks stay on the meta device, and the result names them. `keys` are names below `key`, as those
    of the state dict ``{key: model.state_dict()}``.
    """
    call = Call(checkpoint_id, storage_reader, None, process_group, no_dist, function="load_model")
    terms = KeyTerms(strict=strict, renames=renames, keys=keys)
    rules = LoadRules(allow_pickle, allow_cast, verify, follow_links)
    split = None if base is None else SplitKeys(terms, base, base_renames)

    def make_tensor(tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return new_tensor(tensor) if device is None else torch.empty_like(tensor, device=device)

    filling = _Model(model, key, init_buffers)

    def make_states() -> dict[str, Any]:
        return filling.states(lambda: _holders(call, terms, split))

    with dcp_records.in_call("load", **call.recorded("storage_reader")):
        found = load_from_all(make_states, call, rules, terms=terms, split=split, make_tensor=make_tensor)
        filling.assign()
        filling.make_buffers(make_tensor)
    return None if strict else found


def _holders(call: Call, terms: KeyTerms, split: SplitKeys | None) -> Callable[[str], bool]:
    """Returns a function that says whether a checkpoint of the load has a key."""
    checkpoints = [opened(load_options(call.checkpoint_id, call.storage)[0], terms)]
    if split is not None:
        checkpoints.append(opened(split.base, split.base_terms))
    return lambda key: any(checkpoint.holds_any([key]) for checkpoint in checkpoints)


class _Model:
    """A model during its load."""

    def __init__(self, model: nn.Module, key: str, init_buffers: Callable[[nn.Module], object] | None) -> None:
        self._model = model
        self._key = key
        self._init_buffers = init_buffers
        self._entries: dict[str, Any] = {}  # of the state dict, one for each tensor
        self._before: dict[str, Any] = {}  # the whole state dict
        self._twins: dict[str, str] = {}  # other names of a tensor, with the name of its entry

    def states(self, make_holds: Callable[[], Callable[[str], bool]]) -> dict[str, Any]:
        """Returns the state to fill. Raises InvalidArgument for buffers that nobody computes."""
        lost = [name for name, *_ in self._transient_meta_buffers()]
        if lost and self._init_buffers is None:
            more = f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
            raise InvalidArgument(
                f"the model has buffers on the meta device that are not persistent, and that no checkpoint has: "
                f"{', '.join(lost[:_NAMED_MAX])}{more}. Give load_model a function init_buffers(module) that computes "
                "the buffers of a module",
                key=lost[0],
            )
        self._before = dict(self._model.state_dict(keep_vars=True))
        names: dict[int, list[str]] = {}
        for name, value in self._before.items():
            names.setdefault(id(value) if isinstance(value, torch.Tensor) else -len(names) - 1, []).append(name)
        shared = [group for group in names.values() if len(group) > 1]
        holds = make_holds() if shared else None
        for group in names.values():
            chosen = group[0]
            if len(group) > 1 and holds is not None:
                prefix = f"{self._key}." if self._key else ""
                chosen = next((name for name in group if holds(prefix + name)), chosen)
            self._entries[chosen] = self._before[chosen]
            self._twins.update((name, chosen) for name in group if name != chosen)
        return {self._key: self._entries} if self._key else self._entries

    def assign(self) -> None:
        """Puts the filled tensors into the model."""
        filled: dict[str, Any] = {}
        for name, old in self._before.items():
            if name in self._twins:
                continue
            value = self._entries[name]
            if value is not old and isinstance(old, nn.Parameter) and not isinstance(value, nn.Parameter):
                value = nn.Parameter(value, requires_grad=old.requires_grad)
            filled[name] = value
        filled |= {name: filled[chosen] for name, chosen in self._twins.items()}
        self._model.load_state_dict(filled, assign=True)

    def make_buffers(self, make_tensor: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Gives memory to the buffers that are not persistent, and lets the caller's function compute them."""
        if self._init_buffers is None:
            return
        modules: dict[int, nn.Module] = {}
        for _, module, local, buffer in self._transient_meta_buffers():
            module._buffers[local] = make_tensor(buffer)
            modules[id(module)] = module
        for module in modules.values():
            self._init_buffers(module)
        lost = [name for name, *_ in self._transient_meta_buffers()]
        if lost:
            raise InvalidArgument(f"init_buffers left a buffer on the meta device: {lost[0]}", key=lost[0])

    def _transient_meta_buffers(self) -> list[tuple[str, nn.Module, str, torch.Tensor]]:
        """Returns the buffers on the meta device that no state dict has: full name, module, name in the module."""
        found = []
        for prefix, module in self._model.named_modules():
            for local, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta and local in module._non_persistent_buffers_set:
                    found.append((f"{prefix}.{local}" if prefix else local, module, local, buffer))
        return found
