"""DefaultSavers: the two AsyncSavers that ``cairn.async_save`` uses in this process, and their settings."""

from typing import Any

from cairn._pending import pending_saves
from cairn._pending.async_saver import AsyncSaver
from cairn._process import ProcessPart


class DefaultSavers(ProcessPart):
    """`by_process`: the saver with a writer process (True) and the saver with threads, each made at its first use. The
    second uses the memory of the first."""

    def __init__(self) -> None:
        self.by_process: dict[bool, AsyncSaver] = {}
        self.settings: dict[str, Any] = {}

    def in_child(self) -> "DefaultSavers":
        """A child keeps the settings, but for `fail_at_exit`: that was asked for the parent's exit status."""
        child = DefaultSavers()
        child.settings = {name: value for name, value in self.settings.items() if name != "fail_at_exit"}
        return child

    def saver(self, process: bool) -> AsyncSaver:
        """The saver with or without a writer process."""
        if process not in self.by_process:
            other = self.by_process.get(not process)
            self.by_process[process] = AsyncSaver(process=process, sharing=other, **self.settings)
        return self.by_process[process]

    def configure(self, settings: dict[str, Any]) -> None:
        """Waits for all saves of this process, and makes new savers at their next use."""
        pending_saves.wait_for()
        for saver in self.by_process.values():
            saver.close()
        self.by_process.clear()
        self.settings.update(settings)
