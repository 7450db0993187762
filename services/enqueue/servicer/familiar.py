"""Items that are like one which was checked before.

Holding an item against the rules of the contract costs more than all the rest of its admission, and
most items of a caller differ in nothing but their input bytes and their key. So what passed is
remembered by its shape: the item without those two. Of the bytes the contract bounds only the
length, hence what passed with some bytes passes with fewer; the key is held against its rule here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from buf.validate import validate_pb2
from jobmesh.v1 import enqueue_service_pb2 as pb

#: Shapes remembered; beyond that all are forgotten, and learned again.
MOST_SHAPES = 2000
#: Larger shapes (many labels) are rarely alike.
LARGEST_SHAPE = 1000
#: Fields about which the contract's rules, and the time of day, say all there is to check.
PLAIN = frozenset({"type", "input", "priority", "labels", "retry_policy"})

_KEY = pb.EnqueueItem.DESCRIPTOR.fields_by_name["idempotency_key"]
LONGEST_KEY: int = _KEY.GetOptions().Extensions[validate_pb2.field].string.max_len


#: One job of a batch, or a call with one.
Item = pb.EnqueueItem | pb.EnqueueRequest


class FamiliarItems:
    """Remembers the shapes that passed every check, and the longest input each passed with."""

    def __init__(self) -> None:
        self._longest: dict[bytes, int] = {}

    def covers(self, shape: bytes | None, item: Item) -> bool:
        """Whether an item of this shape passes."""
        return shape is not None and len(item.job.input.data) <= self._longest.get(shape, -1)

    def longest(self, shape: bytes | None) -> int:
        """The longest input that an item of this shape passed with; -1: none has passed."""
        return -1 if shape is None else self._longest.get(shape, -1)

    def learn(self, shape: bytes | None, item: Item) -> bool:
        """The item passed every check there is; whether another one may be like it."""
        if shape is None or len(shape) > LARGEST_SHAPE:
            return False
        if not all(field.name in PLAIN for field, _ in item.job.ListFields()):
            return False
        if len(self._longest) >= MOST_SHAPES:
            self._longest.clear()
        self._longest[shape] = len(item.job.input.data)
        return True


@dataclass(slots=True)
class Group:
    """Items of one request that are alike: their numbers, and the bytes of their inputs."""

    longest: int
    numbers: list[int]
    inputs: list[bytes]


class AlikeItems:
    """Items of one request that differ in nothing but their bytes and keys, gathered by shape;
    those with keys apart from those without.
    """

    def __init__(self, familiar: FamiliarItems, is_large: Callable[[int], bool]) -> None:
        self._familiar, self._is_large = familiar, is_large
        self._groups: dict[tuple[bytes, bool], tuple[pb.EnqueueItem, Group]] = {}

    def take(self, shape: bytes | None, item: pb.EnqueueItem, number: int) -> bool:
        """Take an item that is like one before it; False: it is not."""
        if shape is None:
            return False
        found = self._groups.get((shape, bool(item.idempotency_key)))
        if found is None:
            return False
        group, data = found[1], item.job.input.data
        if len(data) > group.longest or self._is_large(len(data)):
            return False
        group.numbers.append(number)
        group.inputs.append(data)
        return True

    def begin(self, shape: bytes | None, item: pb.EnqueueItem, number: int) -> bool:
        """Begin a group with an item that was checked, or go on with it, if that is the first one
        with so many bytes. False: none can be like it.
        """
        longest = self._familiar.longest(shape)
        if shape is None or longest < 0:
            return False
        place = shape, bool(item.idempotency_key)
        _, group = self._groups.setdefault(place, (item, Group(longest, [], [])))
        group.longest = max(group.longest, longest)
        group.numbers.append(number)
        group.inputs.append(item.job.input.data)
        return True

    def taken(self, *, keyed: bool) -> list[tuple[pb.EnqueueItem, Group]]:
        """The groups with keys, or those without, each with one of its items."""
        return [group for (_, has_keys), group in self._groups.items() if has_keys is keyed]


def shape_of(item: Item) -> bytes | None:
    """The item without what differs from one to the next; None if its key is not in order."""
    given, key = item.job.input, item.idempotency_key
    if len(key) > LONGEST_KEY or "\0" in key:
        return None
    data = given.data
    # Taken out and put back: a copy without them would cost as much again.
    if key:
        item.idempotency_key = ""
    if data:
        given.data = b""
    shape = item.SerializeToString(deterministic=bool(item.job.labels))
    if data:
        given.data = data
    if key:
        item.idempotency_key = key
    return shape
