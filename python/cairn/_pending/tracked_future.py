"""TrackedFuture: a future that tracks whether its exception was retrieved."""

from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class TrackedFuture(Future[T]):
    """The future of work that cannot be cancelled. `exception_retrieved`: a caller got the exception of the work."""

    def __init__(self) -> None:
        super().__init__()
        self.exception_retrieved = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> T:
        """As ``concurrent.futures.Future.result``."""
        try:
            return super().result(timeout)
        except BaseException as error:  # a time-out and Ctrl-C are not the exception of the work
            self.exception_retrieved |= self.done() and error is super().exception()
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As ``concurrent.futures.Future.exception``."""
        error = super().exception(timeout)
        self.exception_retrieved |= error is not None
        return error

    @property
    def has_unretrieved_exception(self) -> bool:
        """Whether the work failed and no caller retrieved its exception."""
        return self.done() and not self.exception_retrieved and super().exception() is not None
