"""Word of due work from others, heard over the broker."""

from __future__ import annotations

from collections.abc import Callable

from services.mesh.bus import Bus, Message, Subjects, Subscription


class DueListener:
    """Tells `changed` that the load is another because somebody else nudged the schedulers.

    Schedulers release jobs that waited for others, fire schedules and take back what got lost;
    other Orchestrators store jobs. None of that passes through here, and a pool at zero workers
    should not wait for the next regular look at the load. What a nudge says is not read: a lost
    one costs that wait, and one too many a look. Our own are not heard: the bus has no echo.
    """

    name = "due listener"

    def __init__(self, bus: Bus, subjects: Subjects, changed: Callable[[], None]) -> None:
        self._bus, self._subjects, self._changed = bus, subjects, changed
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        self._subscription = await self._bus.subscribe(self._subjects.all_due, self._heard)

    async def stop(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    def _heard(self, message: Message) -> None:
        self._changed()
