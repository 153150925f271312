"""Work in flight: bytes, images and pixels of all requests at once."""

from collections.abc import Iterator
from contextlib import contextmanager

from tailshift.serving.messages import Limits, RequestError

__all__ = ["Work", "WorkInFlight"]


class WorkInFlight:
    """Counts what requests hold, from the first byte to the response.

    Attributes:
        num_bytes: Bytes of the bodies of all requests.
        num_images: Images of all requests.
        num_pixels: Pixels of the images that are decoded or wait for it.

    Args:
        limits: Maximum of each.
    """

    def __init__(self, limits: Limits) -> None:
        self.num_bytes = self.num_images = self.num_pixels = 0
        self._limits = limits

    @contextmanager
    def request(self) -> Iterator["Work"]:
        """Give the work of one request, and forget it at the end."""
        work = Work(self, self._limits)
        try:
            yield work
        finally:
            self.num_bytes -= work.num_bytes
            self.num_images -= work.num_images
            work.forget_pixels()


class Work:
    """The work of one request."""

    def __init__(self, total: WorkInFlight, limits: Limits) -> None:
        self.num_bytes = self.num_images = self.num_pixels = 0
        self._total, self._limits = total, limits

    def add_bytes(self, count: int) -> None:
        """Count bytes of the body.

        Raises:
            RequestError: If all requests together have too many.
        """
        most = self._limits.held_bytes
        if self._total.num_bytes + count > most:
            raise RequestError(
                429,
                f"All requests together have more than {most:,} bytes. Try again "
                "later.",
                "held_bytes",
            )
        self.num_bytes += count
        self._total.num_bytes += count

    def add_images(self, count: int) -> None:
        """Count images, before they are decoded.

        Raises:
            RequestError: If all requests together have too many.
        """
        most = self._limits.queued_images
        if self._total.num_images + count > most:
            raise RequestError(
                429,
                f"All requests together have more than {most:,} images: "
                f"{self._total.num_images:,} wait and {count:,} came. Try again later.",
                "queued_images",
            )
        self.num_images += count
        self._total.num_images += count

    def add_pixels(self, count: int) -> None:
        """Count pixels that wait to be decoded.

        Raises:
            RequestError: If all requests together have too many.
        """
        most = self._limits.queued_pixels
        if count > most:
            raise RequestError(
                413,
                f"A request must have at most {most:,} pixels, got {count:,}. Send "
                "fewer images at once.",
                "queued_pixels",
            )
        if self._total.num_pixels + count > most:
            raise RequestError(
                429,
                f"The images of all requests together have more than {most:,} pixels. "
                "Try again later.",
                "queued_pixels",
            )
        self.num_pixels += count
        self._total.num_pixels += count

    def forget_pixels(self) -> None:
        """Forget the pixels, once the images are decoded."""
        self._total.num_pixels -= self.num_pixels
        self.num_pixels = 0
