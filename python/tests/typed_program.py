"""A user's program with the uses of README.md and docs/: mypy checks the program in test_typed_program.py."""

from typing import assert_type

import torch

import cairn


def save_and_load(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    cairn.save(state, checkpoint_id="checkpoints/step-1000")
    cairn.load(state, checkpoint_id="checkpoints/step-1000", verify="full")
    newest = cairn.latest("checkpoints", wait=60)
    if newest is not None:
        cairn.load(state, checkpoint_id=newest)


def save_in_the_background(state: dict[str, object]) -> int:
    cairn.configure_async_saves(generations=2, io_priority="idle", fail_at_exit=True)
    cairn.prepare_async_saves(state, cairn.AsyncCheckpointerType.PROCESS).result()
    future = cairn.async_save(
        state, checkpoint_id="run/step-1000", async_checkpointer_type=cairn.AsyncCheckpointerType.PROCESS
    )
    assert_type(future, cairn.SaveFuture)
    progress: cairn.Progress = future.progress()
    print(progress.phase, progress.bytes_written / max(1, progress.bytes_total))
    future.result(timeout=60)
    return progress.bytes_written


def keep_the_last_save(state: dict[str, object], steps: int) -> None:
    last: cairn.SaveFuture | None = None
    for step in range(steps):
        if last is not None and last.done():
            last.result()
        last = cairn.async_save(state, checkpoint_id=f"run/step-{step}")


def stage_later(state: dict[str, object], optimizer: torch.optim.Optimizer) -> None:
    from cairn.staging import DefaultStager, StagingOptions

    stager = DefaultStager(StagingOptions(use_async_staging=True))
    saved = cairn.async_save(state, checkpoint_id="run/step-1", async_stager=stager)
    if not isinstance(saved, cairn.SaveFuture):
        with cairn.staging_fence(optimizer):
            saved.staging_completion.result()
        print(saved.upload_completion.progress().phase)
    stager.close()


def save_by_a_saver(state: dict[str, object]) -> None:
    with cairn.AsyncSaver(process=False) as saver:
        save = saver.save(state, "run/step-2")
        save.staging.result()
        print(save.upload.progress().phase)


def look(directory: str) -> None:
    checkpoint = cairn.open(directory, tensors="torch")
    for key in checkpoint:
        info = checkpoint.info(key)
        if isinstance(info, cairn.TensorInfo):
            print(key, info.shape, info.dtype, checkpoint.read(key, (slice(0, 1), ...)))
    report = cairn.verify(directory)
    if not report:
        print(*(f"{problem.file} {problem.offset}" for problem in report.problems))
    for save in cairn.saves_in_flight(directory):
        for writer in save.writers:
            if writer.progress is not None:
                print(writer.rank, writer.progress.phase)
