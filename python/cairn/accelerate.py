"""Accelerate with a CheckpointManager: the state of everything that the Accelerator has prepared."""

from typing import TYPE_CHECKING, Any

from cairn._torch_names import modules
from cairn._training_state import WholeEntry, training_entries

__all__ = ["training_state"]


def training_state(accelerator: Any) -> dict[str, Any]:
    """Returns a state dict of the models, optimizers, schedules and gradient scaler that `accelerator` has prepared,
    its registered objects, and the random states of each rank. Call it after ``prepare()``; one result serves all saves
    and loads::

        state = cairn.accelerate.training_state(accelerator)
        with cairn.CheckpointManager("runs/7", save_every=1000, keep_last=3) as manager:
            done = manager.restore(state) or 0

    The entries read and fill the training itself. The weights and the states of the optimizers lie under the names of
    the parameters, for every kind of wrapper but DeepSpeed. The position in the data is not part of the state: see
    ``accelerator.skip_first_batches``.
    """
    models = list(accelerator._models)
    optimizers = [prepared.optimizer for prepared in accelerator._optimizers]
    entries = training_entries(models, optimizers, accelerator._schedulers, accelerator.scaler)
    for index, registered in enumerate(accelerator._custom_objects):
        entries[f"registered_{index}"] = registered
    entries["accumulation"] = WholeEntry(lambda: accelerator.step, lambda step: setattr(accelerator, "step", step))
    return entries


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
