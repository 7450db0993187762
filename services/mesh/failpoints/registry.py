"""Which places of this process are armed, and how often each was reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.mesh.errors import InvalidField
from services.mesh.failpoints.order import Action, Order, parse_order
from services.mesh.failpoints.place import Place


@dataclass(frozen=True, slots=True)
class PointView:
    """How one place stands."""

    name: str
    about: str
    target: str
    when: str
    lossy: bool
    order: str
    """Empty: not armed."""
    hits: int
    fired: int


class Point:
    """One place at work. `order` is what woven code looks at."""

    __slots__ = ("_waiting", "fired", "hits", "order", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.order: Order | None = None
        self.hits = 0
        self.fired = 0
        self._waiting = 0

    def arm(self, order: Order | None) -> None:
        """Take an order, or forget it; counting for `@n` begins anew."""
        self._waiting = order.nth if order is not None else 0
        self.order = order

    def reached(self) -> Order | None:
        """The place was reached: the order to carry out now, if any."""
        self.hits += 1
        order = self.order
        if order is None:
            return None
        self._waiting -= 1
        if self._waiting > 0:
            return None
        if not order.always:
            self.order = None
        self.fired += 1
        return order


class Failpoints:
    """All places of one process."""

    def __init__(self, service: str, places: Iterable[Place]) -> None:
        self.service = service
        self.points: dict[str, Point] = {}
        for place in places:
            if place.name in self.points or place.service != service:
                raise ValueError(f"failpoint {place.name}: named twice, or not of {service}")
            self.points[place.name] = Point(place)

    def arm(self, name: str, text: str) -> Order:
        """Have a place act; InvalidField if there is no such place or order."""
        point = self._point(name)
        try:
            order = parse_order(text)
        except ValueError as error:
            raise InvalidField("order", str(error)) from error
        if order.action is Action.DROP and not point.place.lossy:
            raise InvalidField("order", f"nothing can be dropped at {name}")
        point.arm(order)
        return order

    def arm_all(self, orders: Mapping[str, str]) -> None:
        """Arm those that are ours; what is meant for other services is passed over."""
        for name, text in orders.items():
            if name.partition(".")[0] == self.service:
                self.arm(name, text)

    def disarm(self, name: str) -> bool:
        """Forget an order; False if there was none. An empty name means all."""
        points = [self._point(name)] if name else list(self.points.values())
        armed = [point for point in points if point.order is not None]
        for point in armed:
            point.arm(None)
        return bool(armed)

    def views(self) -> list[PointView]:
        """How all places stand, in the order they are listed."""
        return [_view(point) for point in self.points.values()]

    def _point(self, name: str) -> Point:
        point = self.points.get(name)
        if point is None:
            raise InvalidField("name", f"{self.service} has no failpoint {name!r}")
        return point


def _view(point: Point) -> PointView:
    place = point.place
    return PointView(
        place.name,
        place.about,
        place.target,
        place.when.value,
        place.lossy,
        "" if point.order is None else str(point.order),
        point.hits,
        point.fired,
    )
