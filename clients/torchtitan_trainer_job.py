"""torchtitan's Trainer, from its data loader to its CheckpointManager, in the manager's three modes; see `trial`.

The Trainer needs an accelerator. `CpuDevice`, installed before the import, answers the accelerator's calls for the CPU.
The configuration is torchtitan's debug Llama, in float32 and with torch's own attention, because the default attention
has no gradient on CPUs.
"""

import functools
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class CpuDevice(types.ModuleType):
    """Replaces `torch.cuda` on a machine with CPUs only."""

    def __init__(self) -> None:
        super().__init__("cpu_device")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    @staticmethod
    def get_device_name(_: object = None) -> str:
        return "cpu"

    @staticmethod
    def get_device_properties(_: object = None) -> Any:
        return types.SimpleNamespace(total_memory=1 << 30)

    @staticmethod
    def memory_stats(_: object = None) -> dict[str, int]:
        return {}

    @staticmethod
    def reset_peak_memory_stats() -> None: ...

    @staticmethod
    def empty_cache() -> None: ...


torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda _: CpuDevice()
# The kernels for a kind of expert dispatch import triton, which torch's CPU build lacks. The model has no experts.
kernels = types.ModuleType("torchtitan.distributed.minimal_async_ep.kernels")
kernels.__dict__["__getattr__"] = lambda name: None
sys.modules[kernels.__name__] = kernels

import torchtitan.trainer  # noqa: E402
import trial  # noqa: E402
from fsdp_training import join_ranks, local_copies  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.config import ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

MODES = ("disabled", "async", "async_with_pinned_mem")
WORDS = [f"w{number}" for number in range(64)]


def make_assets(folder: Path) -> None:
    """Writes a tokenizer and sentences where torchtitan looks up its assets."""
    if folder.exists():  # of an earlier part of the trial
        return
    folder.mkdir()
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "<s>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "data").mkdir()
    lines = ({"text": " ".join(WORDS[(line * step) % len(WORDS)] for step in range(1, 40))} for line in range(1, 200))
    (folder / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))


def configuration(assets: Path, output: Path, mode: str, steps: int, seed: int) -> Trainer.Config:
    config = llama3_debugmodel()
    for _, _, parent, name in config.model_spec.model.traverse(FlexAttention.Config):
        setattr(parent, name, ScaledDotProductAttention.Config())
    config.hf_assets_path = str(assets)
    config.dump_folder = str(output)
    config.dataloader.dataset_path = str(assets / "data")
    config.training = TrainingConfig(
        local_batch_size=2,
        seq_len=16,
        steps=steps,
        disable_cuda_graphs=True,
        mixed_precision_param="float32",
    )
    config.lr_scheduler.total_steps = 100
    config.parallelism = ParallelismConfig(spmd_backend="partial_dtensor")
    config.activation_checkpoint = None
    config.debug.seed = seed
    config.checkpoint = CheckpointManager.Config(
        enable=True,
        folder=mode,
        interval=1,
        async_mode=mode,
        keep_latest_k=0,
        last_save_model_only=False,
    )
    return config


class TrainerJob:
    """torchtitan's debug Llama in training. The Trainer saves after each step and loads at its start."""

    def __init__(self, assets: Path, seed: int) -> None:
        self._assets = assets
        self._seed = seed
        self._steps = 0  # the steps that the job was ordered to train
        self._resume: Path | None = None
        self._trained = -1
        self._state: Any = None

    def _run(self, steps: int, output: Path | None, mode: str) -> None:
        config = configuration(self._assets, output or self._resume or Path("unused"), mode, steps, self._seed)
        config.checkpoint.load_only = output is None
        if output and self._resume:
            saved = self._resume / mode / f"step-{self._steps_of(self._resume)}"
            config.checkpoint.initial_load_path, config.checkpoint.initial_load_model_only = str(saved), False
        trainer = Trainer(config)
        for part in trainer.model_parts[0].modules():
            if isinstance(part, FSDPModule):
                part.set_force_sum_reduction_for_comms(True)  # gloo can't scale in a reduction
        if mode == "async_with_pinned_mem" and output:
            # The manager's own stager needs an accelerator.
            trainer.checkpointer.stager = DefaultStager(StagingOptions(False, True, True, False))
        trainer.train()
        trainer.checkpointer.maybe_wait_for_staging()
        trainer.checkpointer.maybe_wait_for_saving()
        self._state = self._state_of(trainer)
        self._trained = steps
        trainer.close()

    @staticmethod
    def _state_of(trainer: Trainer) -> Any:
        model = {name: value for part in trainer.model_parts for name, value in part.state_dict().items()}
        return local_copies(
            {
                "model": model,
                "optimizer": trainer.optimizers.state_dict(),
                "schedule": trainer.lr_schedulers.state_dict(),
                "trainer": trainer.state_dict(),
            }
        )

    @staticmethod
    def _steps_of(path: Path) -> int:
        """The newest step saved below `path`."""
        return max(int(saved.name.partition("-")[2]) for saved in (path / MODES[0]).glob("step-*"))

    def train(self, steps: int) -> None:
        self._steps += 2 * steps  # training continues after some of the saves

    def save(self, path: Path) -> None:
        for mode in MODES:
            self._run(self._steps, path, mode)

    def load(self, path: Path) -> None:
        self._resume = path
        self._steps = self._steps_of(path)
        states = []
        for mode in MODES:
            self._run(self._steps, None, mode)
            states.append(self._state)
        for state in states[1:]:
            trial.assert_same(state, states[0], "another mode")

    def state(self) -> Any:
        if self._trained != self._steps:
            self._run(self._steps, None, MODES[0])
        return self._state


def main() -> None:
    join_ranks()
    folder = Path(sys.argv[1])
    os.environ["HF_HOME"] = str(folder / "huggingface")
    if dist.get_rank() == 0:
        make_assets(folder / "assets")
    dist.barrier()
    os.chdir(folder)
    # The stock function names devices by numbers, and calls functions of a later torch.
    torchtitan.trainer.dist_utils.set_pg_timeouts = lambda **_: None
    # At the end of each training rank 0 sleeps for two seconds. The measured times must be the checkpoints' times.
    clock = types.SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)
    torchtitan.trainer.time = clock  # type: ignore[assignment]
    trial.run("torchtitan", functools.partial(TrainerJob, folder / "assets"))


if __name__ == "__main__":
    main()
