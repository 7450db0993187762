"""Where a process can be struck. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, unique

from services.mesh.errors import DependencyUnavailable


@unique
class When(Enum):
    """On which side of the method the place lies."""

    BEFORE = "before"
    AFTER = "after"


def _away() -> Exception:
    return DependencyUnavailable("failpoint")


def unforeseen() -> Exception:
    """For places where nothing may be raised by contract: the process takes it as it comes."""
    return RuntimeError("failpoint")


@dataclass(frozen=True, slots=True)
class Place:
    """One named instant: before or after a method of a class."""

    name: str
    """The service, then the instant: `scheduler.claim.committed`."""
    about: str
    """What has happened by then, and what has not."""
    owner: type
    method: str
    when: When
    error: Callable[[], Exception] = _away
    """What `raise` raises: an error that the method may raise by its contract."""
    lossy: bool = False
    """Whether what passes here may get lost, so that `drop` means something."""

    def __post_init__(self) -> None:
        if not callable(getattr(self.owner, self.method, None)):
            raise ValueError(f"failpoint {self.name}: {self.target} does not exist")

    @property
    def service(self) -> str:
        return self.name.partition(".")[0]

    @property
    def target(self) -> str:
        """The method, for people."""
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.method}"
