"""A future that records whether a caller retrieved its error."""

from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class ToldFuture(Future[T]):
    """A future of work that can't be cancelled. `was_told`: a caller has retrieved the error of the work."""

    def __init__(self) -> None:
        super().__init__()
        self.was_told = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> T:
        """As Future.result()."""
        try:
            return super().result(timeout)
        except BaseException as error:  # a time-out or Ctrl-C is not the error of the work
            self.was_told = self.was_told or (self.done() and error is super().exception())
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As Future.exception()."""
        error = super().exception(timeout)
        self.was_told = self.was_told or error is not None
        return error

    @property
    def has_untold_error(self) -> bool:
        """Whether the work has failed and no caller has retrieved the error."""
        return self.done() and not self.was_told and super().exception() is not None
