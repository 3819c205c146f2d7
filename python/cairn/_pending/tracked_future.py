"""A future that remembers whether somebody was told of a failure."""

from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class ToldFuture(Future[T]):
    """Of work that nobody can cancel. `was_told`: somebody has got the error that it ended with."""

    def __init__(self) -> None:
        super().__init__()
        self.was_told = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> T:
        """As of every Future."""
        try:
            return super().result(timeout)
        except BaseException as error:  # a time-out or Ctrl-C is none that is to be told
            self.was_told = self.was_told or (self.done() and error is super().exception())
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of every Future."""
        error = super().exception(timeout)
        self.was_told = self.was_told or error is not None
        return error

    @property
    def has_untold_error(self) -> bool:
        """Whether the work has failed and no caller has retrieved the error."""
        return self.done() and not self.was_told and super().exception() is not None
