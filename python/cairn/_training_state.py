"""The state of a training as entries of a state dict, with a layout that does not depend on the wrapper of the model.

The entries are Statefuls: a save calls their ``state_dict()``, and a load fills the training. Weights and the state of
the optimizer lie under the names of the parameters, so a run with DDP resumes with FSDP2, and the reverse.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from cairn._state.random_states import random_states, set_random_states
from cairn._torch_names import modules


class ModelEntry:
    """The parameters and buffers of `model`, without the prefixes of DDP, FSDP and ``torch.compile``."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        return get_model_state_dict(self._model)

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        set_model_state_dict(self._model, state, options=StateDictOptions(strict=strict))


class OptimizerEntry:
    """The state of `optimizer`, by the names of the parameters of `model`. A new optimizer gets a state of zeros."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return get_optimizer_state_dict(self._model, self._optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_optimizer_state_dict(self._model, self._optimizer, state)


class WholeEntry:
    """The state of an object with ``state_dict()``, as a single value: the keys of its dicts keep their types."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self._get = get
        self._put = put

    def state_dict(self) -> dict[str, Any]:
        return {"state": (self._get(),)}  # in a tuple: a save stores it whole

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._put(state["state"][0])


class RandomEntry:
    """The states of this process's random generators. More ranks at a restart use them again by rank modulo."""

    def state_dict(self) -> dict[str, Any]:
        return {"states": random_states(otherwise="modulo")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_random_states(state["states"])


class LaterEntry:
    """An entry whose loaded state waits for put(): a framework that resumes may itself draw random numbers."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry
        self._state: Any = None

    def state_dict(self) -> Any:
        return self._entry.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._state = state

    def put(self) -> None:
        self._entry.load_state_dict(self._state)


def training_entries(
    models: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    schedules: Sequence[Any],
    scaler: Any = None,
) -> dict[str, Any]:
    """Returns the entries `model`, `optimizer` and `schedule`, with numbers from the second on, `scaler` and `random`.
    With several models, each optimizer belongs to the model that has its parameters."""
    entries: dict[str, Any] = {}
    for index, model in enumerate(models):
        entries[_numbered("model", index)] = ModelEntry(model)
    for index, optimizer in enumerate(optimizers):
        entries[_numbered("optimizer", index)] = OptimizerEntry(_model_of(optimizer, models), optimizer)
    for index, schedule in enumerate(schedules):
        entries[_numbered("schedule", index)] = WholeEntry(schedule.state_dict, schedule.load_state_dict)
    if scaler is not None:
        entries["scaler"] = WholeEntry(scaler.state_dict, scaler.load_state_dict)
    entries["random"] = RandomEntry()
    return entries


def _numbered(name: str, index: int) -> str:
    return f"{name}_{index}" if index else name


def _model_of(optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module]) -> torch.nn.Module:
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for model in models:
        if any(id(parameter) in own for parameter in model.parameters()):
            return model
    return models[0]


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
