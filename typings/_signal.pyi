"""The parts of the module behind `signal` that take and return plain numbers."""

from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | None

def getsignal(number: int, /) -> Handler: ...
def signal(number: int, handler: Handler, /) -> Handler: ...
