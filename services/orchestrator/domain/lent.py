"""The room of workers that is here on loan, used in parts.

A grab has room for hundreds of jobs, and one put stores a few. If it were answered by the first,
the next put would come before the worker has asked anew, find no room, and go the usual way. So a
put takes the part it needs, and the rest is there for those beside it:

* A part that leaves half of the grab or more does not answer it: the worker is told that there is
  *more*, and asks for nothing. One that leaves less does. What is left then is good until the
  worker's next grab is here, a moment later.
* A worker is never sent more than it has room for. Of a newer grab it is not known what the worker
  had heard when it wrote it: what was sent since the answer before, or at all if there was none,
  and what is under way, is subtracted. (The exception is a worker that lost its patience, and whose
  new grab crosses an answer: what it has too much of waits there for its turn.)
* A grab may be given away, with what is left of it, as long as it was not answered and no part of
  it is under way: the worker still waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from services.mesh.jobs.credit import GoneWorkers, Grab

#: A smaller grab is answered by the first part of it: its worker says anew how much room it has.
AMPLE = 16
#: A worker that was asked so often in a row for more room is too small for what is put.
MOST_ASKED = 25
#: Types of which it is remembered how large grabs were.
MOST_TYPES = 10_000


class Part(NamedTuple):
    """Room of a grab that a put has, for so many jobs."""

    grab: Grab
    room: int


@dataclass(slots=True, eq=False)
class _Lent:
    """The newest grab of a worker for a type."""

    grab: Grab
    #: Room that no put has.
    left: int
    #: Room that puts have, of this grab and of older ones.
    out: int = 0
    answered: bool = False
    #: Jobs sent since the grab came; and how many the worker has heard of when it grabs anew after
    #: the answer: those before it and, from the moment it is being sent, those in it. (So `sent` of
    #: the next grab begins below 0, until they are settled.)
    sent: int = 0
    heard: int = 0
    #: How often in a row its worker was asked for more room, and got nothing for what it had.
    asked: int = 0
    #: It was here when the right began.
    is_old: bool = False
    #: The worker's next grab goes elsewhere: what is left of this one is for nobody.
    is_closed: bool = False

    @property
    def unheard(self) -> int:
        """Jobs that the worker may get after it has written its next grab."""
        return self.sent - self.heard + self.out


class LentBook:
    """By type and worker, in the order in which workers are served: who got something goes last."""

    def __init__(self) -> None:
        self._lent: dict[str, dict[str, _Lent]] = {}
        #: The largest grabs that were here, by type.
        self._most: dict[str, int] = {}
        self._gone = GoneWorkers()

    def put(self, grab: Grab) -> Grab | None:
        """Take a grab in, unless one as new is here. Without credit it withdraws that one.

        Returns it if no room is left in it: its worker should say anew how much it has.
        """
        if grab.worker_id in self._gone:
            return None
        known = self._lent.get(grab.type, {}).get(grab.worker_id)
        if grab.credit < 1:
            self._withdraw(known, grab)
        elif known is None:
            self._lent.setdefault(grab.type, {})[grab.worker_id] = _Lent(grab, grab.credit)
            self._remember(grab)
        elif known.grab.number < grab.number:
            self._remember(grab)
            left, sent = grab.credit - known.unheard, known.sent - known.heard
            asked = 0 if known.sent or known.out else known.asked
            newer = _Lent(grab, left, known.out, sent=sent, asked=asked)
            self._lent[grab.type][grab.worker_id] = newer
            return self._full(newer)
        return None

    def take(self, type_: str, count: int) -> Part | None:
        """Room for so many jobs in one worker, until `settle`."""
        line = self._lent.get(type_, {})
        for worker_id, lent in line.items():
            if lent.left >= count and not lent.is_closed:
                lent.left -= count
                lent.out += count
                line[worker_id] = line.pop(worker_id)
                return Part(lent.grab, count)
        return None

    def leaves_more(self, part: Part) -> bool:
        """Whether the grab is worth keeping open when this part of it is sent."""
        lent = self._newest(part.grab)
        if lent is None or lent.answered:
            return False
        return part.grab.credit >= AMPLE and lent.left >= part.grab.credit // 2

    def is_shared(self, part: Part) -> bool:
        """Whether others have parts of the worker's room, too. Its next grab has to come here then,
        right or not: nobody else knows of those.
        """
        lent = self._lent.get(part.grab.type, {}).get(part.grab.worker_id)
        return lent is not None and lent.out > part.room

    def answer(self, part: Part, *, stays: bool = True) -> bool:
        """The grab is being answered with this part of it; False if it was answered before, or a
        newer one is here. `stays`: the worker sends its next one here.
        """
        lent = self._newest(part.grab)
        if lent is None or lent.answered:
            return False
        lent.answered, lent.heard = True, lent.sent + part.room
        lent.is_closed = not stays
        return True

    def settle(self, part: Part, used: int, *, answered: bool = False) -> Grab | None:
        """End a `take`: so many jobs were sent to the worker; `answered` with the answer to its
        grab, unless they are none: then it did not leave.

        Returns a newer grab that has no room left after this, as `put` does.
        """
        if used > part.room:
            raise ValueError(f"{used} jobs sent on room for {part.room}")
        lent = self._lent.get(part.grab.type, {}).get(part.grab.worker_id)
        if lent is None:
            return None  # the worker is gone
        lent.out -= part.room
        if answered and self._newest(part.grab) is not lent:
            lent.sent += part.room  # the newer grab was written when they had been heard of
            return self._full(lent)
        lent.left += part.room - used
        lent.sent += used
        if answered:
            lent.answered, lent.is_closed = used > 0, lent.is_closed and used > 0
            lent.heard = lent.heard - part.room + used if used else 0
        return self._full(lent)

    def expects(self, type_: str, count: int) -> bool:
        """Whether a worker may have room for so many soon. It need not have said so: what it had in
        hand when it grabbed was missing there.
        """
        return 2 * self._most.get(type_, 0) >= count

    def answer_scanty(self, type_: str, count: int) -> list[Grab]:
        """Grabs that are open and have less room than that: to be answered empty, for by now there
        may be more.
        """
        found = [one for one in self._open(type_) if one.left < count]
        for lent in found:
            lent.asked += 1
            self._answer_empty(lent)
        return [lent.grab for lent in found]

    def is_tired(self, type_: str) -> bool:
        """Whether a worker was asked again and again for more room than it seems to have."""
        return any(lent.asked >= MOST_ASKED for lent in self._lent.get(type_, {}).values())

    def answer_old(self, type_: str) -> list[Grab]:
        """A right begins: open grabs that were here when the last one did, to be answered empty.
        Their workers would lose patience.
        """
        found = [one for one in self._open(type_) if one.is_old]
        for lent in found:
            self._answer_empty(lent)
        for lent in self._lent.get(type_, {}).values():
            lent.is_old = True
        return [lent.grab for lent in found]

    def _open(self, type_: str) -> list[_Lent]:
        """Grabs that nobody has a part of, and that can be answered."""
        lents = self._lent.get(type_, {}).values()
        return [one for one in lents if not one.answered and not one.out and one.left > 0]

    def _answer_empty(self, lent: _Lent) -> None:
        lent.answered, lent.heard, lent.left = True, lent.sent, 0

    def take_out(self, type_: str) -> list[Grab]:
        """Give up what is here for a type; returns the grabs that still wait for an answer, with
        the room they have left. What puts have stays until it is settled; and what is not known to
        be heard, until the worker's next grab.
        """
        given: list[Grab] = []
        for lent in list(self._lent.get(type_, {}).values()):
            if lent.out:
                continue
            if not lent.answered and lent.left > 0:
                given.append(replace(lent.grab, credit=lent.left))
            if lent.answered and lent.unheard:
                lent.left = 0
            else:
                self._remove(lent)
        return given

    def take_out_of(self, grab: Grab) -> Grab | None:
        """Give up this grab alone, with the room it has left; None: that cannot be, for puts have
        parts of it, or it was answered.
        """
        lent = self._newest(grab)
        if lent is None or lent.answered or lent.out or lent.left < 1:
            return None
        self._remove(lent)
        return replace(lent.grab, credit=lent.left)

    def drop_worker(self, worker_id: str) -> None:
        """Forget a worker that is gone, for good."""
        self._gone.add(worker_id)
        lines = list(self._lent.values())
        for lent in [line[worker_id] for line in lines if worker_id in line]:
            self._remove(lent)

    def _newest(self, grab: Grab) -> _Lent | None:
        """What is known of this grab, if no newer one is here."""
        lent = self._lent.get(grab.type, {}).get(grab.worker_id)
        return lent if lent is not None and lent.grab.number == grab.number else None

    def _remember(self, grab: Grab) -> None:
        if grab.type not in self._most and len(self._most) >= MOST_TYPES:
            self._most.clear()
        self._most[grab.type] = max(grab.credit, self._most.get(grab.type, 0))

    def _withdraw(self, known: _Lent | None, grab: Grab) -> None:
        if known is not None and known.grab.number <= grab.number:
            known.left, known.answered = -known.out, True

    def _full(self, lent: _Lent) -> Grab | None:
        """An open grab without room is forgotten, and its worker told to grab anew."""
        if lent.answered or lent.out or lent.left > 0:
            return None
        self._remove(lent)
        return lent.grab

    def _remove(self, lent: _Lent) -> None:
        line = self._lent[lent.grab.type]
        del line[lent.grab.worker_id]
        if not line:
            del self._lent[lent.grab.type]
