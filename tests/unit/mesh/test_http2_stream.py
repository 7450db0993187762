"""Windows of a stream: nobody sends more than there is room for, and nobody waits for ever."""

from __future__ import annotations

from collections import deque

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.mesh.rpc.http2.frames import FLOW_CONTROL_ERROR, LARGEST_WINDOW, BrokenStream
from services.mesh.rpc.http2.messages import PREFIX_BYTES, BadMessage, framed
from services.mesh.rpc.http2.stream import MESSAGE_BYTES, WINDOW, Stream

#: More than the window, so that some messages need it more than once.
LARGEST = WINDOW + WINDOW // 2
FRAME = 64 * 1024
SIZES = st.sampled_from([0, 1, 100, FRAME, WINDOW // 2, WINDOW - PREFIX_BYTES, LARGEST])
MESSAGES = st.lists(SIZES | st.integers(0, LARGEST), min_size=1, max_size=6)


class Peer:
    """Sends on one stream, as much as its window lets it, and knows what the other side has."""

    def __init__(self) -> None:
        self.stream = Stream(1, 0, LARGEST)
        self.window = WINDOW
        self.backlog = b""
        #: Not read yet.
        self.expected: deque[bytes] = deque()
        #: Bytes of the window, and those of them that are messages.
        self.sent = self.sent_data = self.credited = self.read_bytes = 0
        self._count = 0

    def say(self, size: int) -> None:
        self._count += 1
        message = bytes((self._count % 256,)) * size
        self.backlog += framed(message)
        self.expected.append(message)

    def send(self, most: int, padding: int = 0) -> int:
        """Send what there is room for; returns how much of the backlog that was."""
        padding = min(padding, self.window)
        data = self.backlog[: min(most, self.window - padding)]
        self.backlog = self.backlog[len(data) :]
        size = len(data) + padding
        self.window -= size
        self.sent += size
        self.sent_data += len(data)
        self._credit(self.stream.receive(data, size))
        return len(data)

    def hear(self) -> bytes:
        """The other side reads."""
        message, credit = self.stream.read()
        assert message == self.expected.popleft()
        self.read_bytes += len(message) + PREFIX_BYTES
        self._credit(credit)
        return message

    @property
    def unread(self) -> int:
        return self.sent_data - self.read_bytes

    def _credit(self, size: int) -> None:
        assert size >= 0
        self.window += size
        self.credited += size


class OneStream(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.peer = Peer()

    @rule(size=SIZES | st.integers(0, LARGEST))
    def say(self, size: int) -> None:
        self.peer.say(size)

    @rule(most=st.sampled_from([1, 10, FRAME, WINDOW]) | st.integers(0, WINDOW))
    def send(self, most: int) -> None:
        self.peer.send(most)

    @rule(most=st.integers(0, FRAME), padding=st.integers(1, 256))
    def send_with_padding(self, most: int, padding: int) -> None:
        self.peer.send(most, padding)

    @precondition(lambda self: self.peer.stream.messages)
    @rule()
    def read(self) -> None:
        self.peer.hear()

    @precondition(lambda self: self.peer.stream.messages)
    @rule()
    def read_all(self) -> None:
        while self.peer.stream.messages:
            self.peer.hear()

    @invariant()
    def what_is_held_is_what_is_unread(self) -> None:
        besides = MESSAGE_BYTES * len(self.peer.stream.messages)
        assert self.peer.stream.held == self.peer.unread + besides

    @invariant()
    def what_may_be_unread_is_bounded(self) -> None:
        assert self.peer.unread + self.peer.window <= WINDOW + LARGEST + PREFIX_BYTES

    @invariant()
    def who_has_nothing_to_read_lets_the_peer_send(self) -> None:
        if not self.peer.stream.messages:
            assert self.peer.window > WINDOW // 2

    @invariant()
    def only_a_message_in_pieces_is_cut(self) -> None:
        whole = sum(len(each) + PREFIX_BYTES for each in self.peer.stream.messages)
        assert self.peer.stream.is_cut == (self.peer.unread > whole)


OneStream.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_a_stream_bounds_its_peer_and_never_starves_it = OneStream.TestCase


@given(MESSAGES, st.integers(1, WINDOW), st.integers(0, 3))
def test_every_message_arrives_however_slowly_it_is_read(
    sizes: list[int], most: int, patience: int
) -> None:
    peer = Peer()
    for size in sizes:
        peer.say(size)
    most = max(most, len(peer.backlog) // 50)
    while peer.expected:
        if not peer.send(most) or len(peer.stream.messages) > patience:
            peer.hear()
    assert (peer.backlog, peer.stream.held) == (b"", 0)


@given(MESSAGES, st.integers(FRAME // 4, WINDOW), st.integers(0, 3))
def test_no_byte_is_credited_twice(sizes: list[int], most: int, patience: int) -> None:
    peer = Peer()
    for size in sizes:
        peer.say(size)
    while peer.expected:
        if not peer.send(most) or len(peer.stream.messages) > patience:
            peer.hear()
        assert peer.credited <= peer.sent
        assert peer.window <= WINDOW
    assert peer.sent - peer.credited < WINDOW // 4, "what is kept back is less than a piece"


def test_a_large_message_that_comes_with_another_is_credited_once() -> None:
    peer = Peer()
    peer.say(LARGEST)
    peer.send(WINDOW - 1)
    peer.say(1)
    while peer.backlog:
        peer.send(WINDOW)
    peer.hear()
    assert peer.window <= WINDOW


def test_a_peer_that_nobody_reads_has_a_window_s_worth_and_no_more() -> None:
    peer = Peer()
    for _ in range(100):
        peer.say(10_000)
    while peer.send(FRAME):
        pass
    assert (peer.window, peer.unread, peer.credited) == (0, WINDOW, 0)


def test_what_was_read_is_credited_in_few_pieces() -> None:
    peer = Peer()
    credits = 0
    for _ in range(1000):
        peer.say(1000)
        before = peer.credited
        peer.send(WINDOW)
        peer.hear()
        credits += peer.credited > before
    assert credits == 1000 * (1000 + PREFIX_BYTES) // (WINDOW // 4)


def test_more_than_the_window_has_room_for_breaks_the_stream() -> None:
    stream = Stream(1, 0, LARGEST)
    stream.receive(framed(bytes(WINDOW - PREFIX_BYTES)), WINDOW)
    with pytest.raises(BrokenStream) as caught:
        stream.receive(b"", 1)
    assert caught.value.code == FLOW_CONTROL_ERROR


def test_padding_takes_room_and_is_not_held() -> None:
    stream = Stream(1, 0, LARGEST)
    assert stream.receive(framed(b"message"), 200) == 0
    assert stream.held == PREFIX_BYTES + len(b"message") + MESSAGE_BYTES
    with pytest.raises(BrokenStream):
        stream.receive(b"", WINDOW - 199)


def test_who_sends_nothing_more_is_credited_nothing() -> None:
    stream = Stream(1, 0, LARGEST)
    stream.receive(framed(bytes(WINDOW - PREFIX_BYTES)), WINDOW)
    stream.peer_has_ended = True
    assert stream.read()[1] == 0
    assert stream.held == 0


@pytest.mark.parametrize("size", [LARGEST + 1, 2**32 - 1])
def test_a_message_too_large_is_no_message(size: int) -> None:
    with pytest.raises(BadMessage) as caught:
        Stream(1, 0, LARGEST).receive(b"\0" + size.to_bytes(4, "big"), PREFIX_BYTES)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


# --- out


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=8),
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
)
def test_bytes_leave_in_their_order_and_no_more_than_there_is_room_for(
    parts: list[bytes], rooms: list[int]
) -> None:
    stream = Stream(1, 1000, LARGEST)
    for part in parts:
        stream.put(part)
    everything, gone = b"".join(parts), b""
    while stream.waiting_bytes:
        room = rooms[len(gone) % len(rooms)]
        taken = stream.take(room)
        assert 0 < len(taken) <= room
        gone += taken
        assert stream.waiting_bytes == len(everything) - len(gone)
        assert stream.window == 1000 - len(gone)
    assert gone == everything


def test_what_is_put_while_some_waits_leaves_after_it() -> None:
    stream = Stream(1, 1000, LARGEST)
    stream.put(b"abc")
    assert stream.take(1) == b"a"
    stream.put(b"def")
    assert [stream.take(2), stream.take(2)] == [b"bc", b"de"]
    assert (stream.take(9), stream.waiting_bytes) == (b"f", 0)


def test_a_window_may_shrink_below_nothing_and_grow_again() -> None:
    stream = Stream(1, 10, LARGEST)
    stream.put(bytes(10))
    stream.take(10)
    stream.widen(-65_535)
    assert stream.window == -65_535
    stream.widen(65_536)
    assert stream.window == 1


def test_a_window_grows_to_31_bits_and_no_further() -> None:
    stream = Stream(1, 1, LARGEST)
    stream.widen(LARGEST_WINDOW - 1)
    assert stream.window == LARGEST_WINDOW
    with pytest.raises(BrokenStream) as caught:
        stream.widen(1)
    assert caught.value.code == FLOW_CONTROL_ERROR


# --- its end


def test_a_stream_with_a_status_or_without_a_future_is_answered() -> None:
    stream = Stream(1, 0, LARGEST)
    assert not stream.is_answered
    stream.trailers = b""
    assert stream.is_answered
    stream.trailers, stream.has_ended = None, True
    assert stream.is_answered


def test_what_is_dropped_holds_nothing() -> None:
    peer = Peer()
    peer.say(100)
    peer.send(1000)
    peer.say(100)
    peer.send(50)
    peer.stream.put(b"response")
    peer.stream.drop()
    assert not peer.stream.messages
    assert (peer.stream.held, peer.stream.waiting_bytes) == (0, 0)
