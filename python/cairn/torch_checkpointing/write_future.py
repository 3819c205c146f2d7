"""WriteFuture: the future of a save's files, done with None."""

from concurrent.futures import Future

from cairn._async.pending_saves import PendingSave
from cairn.progress import Progress


class WriteFuture(Future[None]):
    """The future of an asynchronous save, of which torch_checkpointing gives a future of None.

    A caller who gets the error here has retrieved the error of the save, which is then not logged when the program
    ends.
    """

    def __init__(self, save: PendingSave) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._save = save

    def end(self) -> None:
        """Ends this future as the save has ended."""
        error = Future.exception(self._save.upload)  # Future's own method: no caller has retrieved the error
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> None:
        """As ``concurrent.futures.Future.result``."""
        error = self.exception(timeout)
        if error is not None:
            raise error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As ``concurrent.futures.Future.exception``."""
        error = super().exception(timeout)
        if error is not None:
            self._save.upload.exception()  # counts as retrieved
        return error

    def progress(self) -> Progress:
        """Returns the progress of this rank's part of the save."""
        return self._save.upload.progress()
