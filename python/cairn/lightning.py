"""Lightning's Trainer with a CheckpointManager: a callback that saves, stops and resumes the run.

Works with the packages ``lightning`` and ``pytorch_lightning``, and with every strategy whose optimizers PyTorch's
``get_optimizer_state_dict`` knows: a single device, DDP, FSDP, ``ModelParallelStrategy``.
"""

import contextlib
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cairn._calls.save import save
from cairn._torch_names import modules
from cairn._training_state import LaterEntry, ModelEntry, OptimizerEntry, RandomEntry
from cairn._whole_state import read
from cairn.errors import InvalidArgument
from cairn.managed_run import CheckpointManager
from cairn.retention import remove_checkpoint

__all__ = ["CheckpointIO", "ManagedCheckpoints"]

# Classes of `lightning` and of `pytorch_lightning` are different. A Trainer asks for its own.
_ALONE = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
_PACKAGE = "pytorch_lightning" if _ALONE or importlib.util.find_spec("lightning") is None else "lightning.pytorch"
_Checkpoint: Any = importlib.import_module(f"{_PACKAGE}.callbacks").Checkpoint
_TorchCheckpointIO: Any = importlib.import_module(f"{_PACKAGE}.plugins.io").TorchCheckpointIO
_ARGUMENTS_OF_THE_PROGRAM = (
    "hparams_name",
    "hyper_parameters",
    "hparams_type",
    "datamodule_hparams_name",
    "datamodule_hyper_parameters",
    "datamodule_hparams_type",
)


class ManagedCheckpoints(_Checkpoint):  # type: ignore[misc]
    """A callback for Lightning's Trainer: the checkpoints of the run below `root`, by a CheckpointManager.

    ::

        checkpoints = cairn.lightning.ManagedCheckpoints("runs/7", save_every=1000, keep_last=3)
        trainer = Trainer(max_steps=100_000, callbacks=[checkpoints])
        trainer.fit(module)
        if checkpoints.preempted:
            sys.exit(75)

    `settings` are the keywords of :class:`cairn.CheckpointManager`. The manager lives from the callback's ``setup``,
    when Lightning has the process group, to the end of ``fit``; :attr:`manager` is then the last one, closed.

    A step is an optimizer step, as in ``trainer.global_step``. The checkpoint has all that Lightning saves, and the
    random states of each rank, but not the hyperparameters, which the program gives again. A save waits for the
    validation of its step. The metrics of a checkpoint are those of ``trainer.callback_metrics`` that belong to its
    step. The last step is saved too.

    ``fit`` resumes from the newest good checkpoint below `root`. While there is none, ``fit(ckpt_path=...)`` starts
    from a checkpoint of Lightning. `load_options` are those of :func:`cairn.load`, for example
    ``{"allow_pickle": True}`` if callbacks save objects of classes.

    Lightning's own handlers of SIGTERM and of Slurm's signal are not installed: the manager stops the run.
    """

    def __init__(self, root: Any, *, load_options: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__()
        self._root = root
        self._settings = settings
        self._load_options = dict(load_options or {})
        self._step = 0  # the last one that was handed to save()
        self._saved: int | None = None  # the step of the checkpoint that this run has made or loaded last
        self._random: LaterEntry | None = None  # loaded, until the first batch
        self._manager: CheckpointManager | None = None

    @property
    def manager(self) -> CheckpointManager:
        """The manager of the run, or of the last run. Raises InvalidArgument before ``fit``."""
        if self._manager is None:
            raise InvalidArgument("the manager is made by fit(), when Lightning has the process group")
        return self._manager

    @property
    def preempted(self) -> bool:
        """Whether a signal has ended the last run, with a checkpoint."""
        return self._manager is not None and self._manager.preempted

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._manager = CheckpointManager(self._root, **self._settings)
            trainer._signal_connector.register_signal_handlers = lambda: None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Resumes. The strategy has the model and the optimizers, and the loops have not begun."""
        self._step = trainer.global_step
        self._saved = None
        random = LaterEntry(RandomEntry())
        state = {**_tensors(trainer), "lightning": None, "random": random}
        self._saved = self.manager.restore(state, **self._load_options)
        if self._saved is None:
            return
        self._random = random
        (rest,) = state["lightning"]
        connector = trainer._checkpoint_connector
        connector._loaded_checkpoint = rest
        connector.restore_datamodule()
        pl_module.on_load_checkpoint(rest)
        connector.restore_callbacks()
        connector.restore_precision_plugin_state()
        connector.restore_loops()
        connector.restore_lr_schedulers()
        connector._loaded_checkpoint = {}
        connector.resume_start = lambda *_, **__: None  # of a `ckpt_path`, which this checkpoint follows
        self._step = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._random is not None:
            self._random.put()
            self._random = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loop = trainer.fit_loop.epoch_loop
        if trainer.global_step == self._step:  # gradients are accumulated
            return
        validates = loop._should_check_val_fx(trainer.fit_loop._data_fetcher)
        if not validates or self.manager.stops_at(trainer.global_step):  # a validation may outlast the grace of a stop
            self._end_step(trainer, validated=False)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._end_step(trainer, validated=True)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        last = trainer.global_step
        if last and not self.preempted and last != self._saved:
            self._save(trainer, _metrics_of_training(trainer), force=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._release(trainer)
        if stage == "fit" and self._manager is not None:
            self._manager.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._release(trainer)
        if self._manager is not None:
            self._manager.__exit__(type(exception), exception, None)

    def _end_step(self, trainer: Any, *, validated: bool) -> None:
        if trainer.global_step == self._step:  # gradients are accumulated
            return
        self._step = trainer.global_step
        if self.manager.should_save(self._step):
            self._save(trainer, trainer.callback_metrics if validated else _metrics_of_training(trainer))
        if self.manager.preempted:
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # they would go on
            trainer.limit_val_batches = 0  # a stop would validate first

    def _save(self, trainer: Any, metrics: Mapping[str, Any], *, force: bool = False) -> None:
        self.manager.save(trainer.global_step, lambda: _state(trainer), metrics, force=force)
        self._saved = trainer.global_step

    def _release(self, trainer: Any) -> None:
        """Gives Lightning back its methods."""
        vars(trainer._signal_connector).pop("register_signal_handlers", None)
        vars(trainer._checkpoint_connector).pop("resume_start", None)


class CheckpointIO(_TorchCheckpointIO):  # type: ignore[misc]
    """A plugin for the Trainer's other calls: ``ckpt_path`` may name a checkpoint of a :class:`ManagedCheckpoints`.

    ::

        trainer = Trainer(plugins=[cairn.lightning.CheckpointIO()])
        trainer.test(module, ckpt_path="runs/7/step-5000")

    ``trainer.save_checkpoint`` and ``ModelCheckpoint`` make checkpoints of Cairn; rank 0 saves, and the call returns
    when the checkpoint is durable. Files of Lightning are loaded as without the plugin. Not for strategies that save
    in shards, which use no plugin. A checkpoint in shards is loaded whole, on the CPU.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if storage_options is not None:
            raise InvalidArgument("Cairn has no storage options", actual=repr(storage_options))
        weights = {"state_dict": checkpoint["state_dict"]}
        rest = {name: value for name, value in checkpoint.items() if name != "state_dict"}
        optimizers = rest.pop("optimizer_states", None)
        if optimizers is not None:
            weights |= {f"optimizer_{index}": optimizer for index, optimizer in enumerate(optimizers)}
        save({**weights, "lightning": (rest,)}, checkpoint_id=path, no_dist=True)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        if not (Path(path) / ".metadata").is_file():
            loaded: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)
            return loaded
        state = read(path)
        names = itertools.takewhile(state.__contains__, (f"optimizer_{index}" for index in itertools.count()))
        optimizers = [_by_number(state[name]) for name in names]
        (rest,) = state["lightning"]
        return {**rest, "state_dict": state["state_dict"], "optimizer_states": optimizers}

    def remove_checkpoint(self, path: Any) -> None:
        if (Path(path) / ".metadata").is_file():
            remove_checkpoint(path)
        else:
            super().remove_checkpoint(path)


def _metrics_of_training(trainer: Any) -> Mapping[str, Any]:
    """Those of ``trainer.callback_metrics`` that are not of the last validation, and so of an earlier step."""
    results = trainer.fit_loop.epoch_loop._results
    metrics: Mapping[str, Any] = results.metrics(on_step=True)["callback"]
    return metrics


def _by_number(optimizer: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer as its ``load_state_dict`` needs it, with numbers for the names of parameters."""
    names = [name for group in optimizer["param_groups"] for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    groups = [{**group, "params": [numbers[name] for name in group["params"]]} for group in optimizer["param_groups"]]
    return {
        "state": {numbers[name]: value for name, value in optimizer.get("state", {}).items()},
        "param_groups": groups,
    }


def _tensors(trainer: Any) -> dict[str, Any]:
    """The entries that Lightning's own sharded checkpoints have too."""
    model = trainer.strategy.model
    optimizers = {f"optimizer_{i}": OptimizerEntry(model, optimizer) for i, optimizer in enumerate(trainer.optimizers)}
    return {"state_dict": _Weights(model, trainer.lightning_module), **optimizers}


class _Weights(ModelEntry):
    """The weights, loaded as strictly as the module wants."""

    def __init__(self, model: torch.nn.Module, module: Any) -> None:
        super().__init__(model)
        self._strict: bool = module.strict_loading

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        super().load_state_dict(state, strict=strict and self._strict)


def _state(trainer: Any) -> dict[str, Any]:
    """The content of Lightning's checkpoint; hooks of the module may have changed it."""
    entries = {name: entry.state_dict() for name, entry in _tensors(trainer).items()}
    optimizers = iter([entry for name, entry in entries.items() if name != "state_dict"])
    with _instead(
        trainer.strategy,
        lightning_module_state_dict=lambda: entries["state_dict"],
        optimizer_state=lambda optimizer: next(optimizers),
    ):
        rest = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    state = {"state_dict": rest.pop("state_dict")}
    state |= {f"optimizer_{index}": optimizer for index, optimizer in enumerate(rest.pop("optimizer_states"))}
    for name in _ARGUMENTS_OF_THE_PROGRAM:
        rest.pop(name, None)
    return {**state, "lightning": (rest,), "random": RandomEntry().state_dict()}


@contextlib.contextmanager
def _instead(owner: Any, **methods: Any) -> Iterator[None]:
    """Gives `owner` other methods for a while."""
    vars(owner).update(methods)
    try:
        yield
    finally:
        for name in methods:
            del vars(owner)[name]


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
