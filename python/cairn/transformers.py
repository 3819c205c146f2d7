"""The Trainer of Transformers with a CheckpointManager: a callback that saves, stops and resumes the run."""

import contextlib
import dataclasses
import importlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cairn._torch_names import modules
from cairn._training_state import LaterEntry, training_entries
from cairn.errors import InvalidArgument, NotFound
from cairn.managed_run import CheckpointManager

__all__ = ["ManagedCheckpoints"]

_callbacks: Any = importlib.import_module("transformers.trainer_callback")  # has no types
_STATE_FILE = "trainer_state.json"  # transformers.trainer.TRAINER_STATE_NAME, whose import takes seconds


class ManagedCheckpoints(_callbacks.TrainerCallback):  # type: ignore[misc]
    """A callback for the Trainer of Transformers: the checkpoints of the run below `root`, by a CheckpointManager.

    ::

        checkpoints = cairn.transformers.ManagedCheckpoints("runs/7", save_every=1000, keep_last=3)
        trainer = Trainer(model, TrainingArguments(save_strategy="no"), train_dataset=data, callbacks=[checkpoints])
        checkpoints.train(trainer)
        if checkpoints.preempted:
            sys.exit(75)

    `settings` are the keywords of :class:`cairn.CheckpointManager`. The manager lives during :meth:`train`;
    :attr:`manager` is then the last one, closed.

    A step is an optimizer step, as in ``trainer.state.global_step``. The checkpoint has the model, the optimizer, the
    schedule, the gradient scaler, the Trainer's state with those of its callbacks, and the random states of each rank.
    A save waits for the log and the evaluation of its step; its metrics are the numbers logged at this
    step. The last step is saved too. `load_options` are those of :func:`cairn.load`.

    Parameters lie under their names, for every kind of wrapper but DeepSpeed. The Trainer's own checkpoints, with the
    model as ``from_pretrained`` needs it, are made by ``trainer.save_model()``, or beside these with a `save_strategy`.
    """

    def __init__(self, root: Any, *, load_options: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self._root = root
        self._settings = settings
        self._load_options = dict(load_options or {})
        self._manager: CheckpointManager | None = None
        self._trainer: Any = None  # during train()
        self._step = 0  # the last one that was handed to save()
        self._saved: int | None = None  # the step of the checkpoint that this run has made or loaded last
        self._begin = 0  # the step from which the Trainer resumes
        self._random: LaterEntry | None = None  # loaded
        self._awaits = ""  # "log" or "evaluate": the save of this step comes after it

    @property
    def manager(self) -> CheckpointManager:
        """The manager of the run, or of the last run. Raises InvalidArgument before train()."""
        if self._manager is None:
            raise InvalidArgument("the manager is made by train()")
        return self._manager

    @property
    def preempted(self) -> bool:
        """Whether a signal has ended the last run, with a checkpoint."""
        return self._manager is not None and self._manager.preempted

    def train(self, trainer: Any, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """Calls ``trainer.train()``, and returns its result. Resumes from the newest good checkpoint below `root`.

        While there is none, `resume_from_checkpoint` is a checkpoint of the Trainer, as in ``trainer.train()``.
        """
        if not any(callback is self for callback in trainer.callback_handler.callbacks):
            raise InvalidArgument("the Trainer does not have this callback")
        self._trainer = trainer
        self._saved = None
        with CheckpointManager(self._root, **self._settings) as self._manager, tempfile.TemporaryDirectory() as folder:
            found = self._read_trainer_state(Path(folder))
            if not found:
                self._step = 0
                return trainer.train(resume_from_checkpoint=resume_from_checkpoint, **options)
            with self._loads_of(trainer, Path(folder)):
                while True:
                    try:
                        return trainer.train(resume_from_checkpoint=folder, **options)
                    except _AnotherStepError:
                        continue

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._awaits = "evaluate" if control.should_evaluate else "log" if control.should_log else ""
        if not self._awaits:
            self._end_step(state, control)

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._awaits == "log":
            self._end_step(state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._awaits == "evaluate":
            self._end_step(state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        last = state.global_step
        if last and not self.preempted and last != self._saved:
            self._save(state, force=True)

    def _end_step(self, state: Any, control: Any) -> None:
        self._awaits = ""
        if state.global_step == self._step:
            return
        self._step = state.global_step
        if self.manager.should_save(self._step):
            self._save(state)
        if self.manager.preempted:
            control.should_training_stop = True

    def _save(self, state: Any, *, force: bool = False) -> None:
        entries = self._entries()
        self.manager.save(state.global_step, entries, _logged_numbers(state), force=force)
        self._saved = state.global_step

    def _entries(self) -> dict[str, Any]:
        trainer = self._trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        scaler = trainer.accelerator.scaler
        entries = training_entries([trainer.model_wrapped], [optimizer], [trainer.lr_scheduler], scaler)
        return {**entries, "trainer": (_state_text(trainer),)}

    def _read_trainer_state(self, folder: Path) -> bool:
        """Writes the Trainer's state of the newest good checkpoint to a file, where the Trainer looks for it."""
        state: dict[str, Any] = {"trainer": None}
        step = self.manager.restore(state, **self._load_options)
        if step is None:
            return False
        self._begin_at(step, state["trainer"], folder)
        return True

    def _begin_at(self, step: int, state: tuple[str], folder: Path) -> None:
        (folder / _STATE_FILE).write_text(state[0])
        self._begin = self._step = self._saved = step

    @contextlib.contextmanager
    def _loads_of(self, trainer: Any, folder: Path) -> Iterator[None]:
        """Lets the Trainer load from the manager where it would load from files in `folder`."""
        methods = {
            "_load_from_checkpoint": lambda *_, **__: None,
            "_load_optimizer_and_scheduler": lambda *_, **__: self._load(folder),
            "_load_rng_state": lambda *_, **__: self._set_random_states(),
        }
        vars(trainer).update(methods)
        try:
            yield
        finally:
            for name in methods:
                vars(trainer).pop(name, None)

    def _load(self, folder: Path) -> None:
        """Fills the model, the optimizer and the schedule, which the Trainer has just prepared.

        If the checkpoint is damaged, the Trainer has to begin at the step of the next older one.
        """
        entries = self._entries()
        self._random = entries["random"] = LaterEntry(entries["random"])
        step = self.manager.restore(entries, **self._load_options)
        if step is None:
            raise NotFound("the checkpoints of the run were removed while the Trainer resumed", actual=str(self._root))
        if step != self._begin:
            self._begin_at(step, entries["trainer"], folder)
            raise _AnotherStepError

    def _set_random_states(self) -> None:
        if self._random is not None:
            self._random.put()


class _AnotherStepError(Exception):
    """The Trainer has prepared itself for the step of a checkpoint that is damaged."""


def _state_text(trainer: Any) -> str:
    """The Trainer's state, with those of its callbacks, as ``trainer_state.json`` has them."""
    state = dataclasses.asdict(trainer.state)
    exported = [
        part
        for part in [*trainer.callback_handler.callbacks, trainer.control]
        if isinstance(part, _callbacks.ExportableState)
    ]
    by_name: dict[str, list[Any]] = {}
    for part in exported:
        by_name.setdefault(type(part).__name__, []).append(part.state())
    callbacks = {name: states if len(states) > 1 else states[0] for name, states in by_name.items()}
    return json.dumps({**state, "stateful_callbacks": callbacks}, sort_keys=True)


def _logged_numbers(state: Any) -> dict[str, float]:
    """The numbers in the log of this step."""
    logged: dict[str, Any] = {}
    for entry in state.log_history:
        if entry.get("step") == state.global_step:
            logged |= entry
    return {name: float(value) for name, value in logged.items() if isinstance(value, (int, float))}


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
