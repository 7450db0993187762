"""The tap on NATS frames, fed by hand."""

from __future__ import annotations

import pytest

from tests.chaos.broker import BrokerTap

FRAMES = (
    b'INFO {"a":1}\r\n',
    b"MSG jm.due.hop 1 5\r\nhello\r\n",
    b"HMSG jm.grab.hop 2 _INBOX.x 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b"PING\r\n",
    b"MSG jm.empty 3 0\r\n\r\n",
    b"MSG jm.odd 4 6\r\na\r\nb\r\n\r\n",
)
MESSAGES = {FRAMES[1], FRAMES[2], FRAMES[4], FRAMES[5]}


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_frames_pass_whole_however_they_are_cut(size: int) -> None:
    sent: list[bytes] = []
    feed = BrokerTap().opened(sent.append)
    stream = b"".join(FRAMES)
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert b"".join(feed(chunk) for chunk in chunks) == stream
    assert sent == []


def test_a_lossy_tap_drops_messages_and_nothing_else() -> None:
    tap = BrokerTap()
    feed = tap.opened(lambda data: None)
    tap.lose(1.0)
    assert feed(b"".join(FRAMES)) == FRAMES[0] + FRAMES[3]
    assert tap.dropped == len(MESSAGES)
    tap.lose(0.0)
    assert feed(FRAMES[1]) == FRAMES[1]


def test_what_was_delivered_is_delivered_again_to_the_same_client() -> None:
    tap = BrokerTap()
    sent: list[bytes] = []
    feed = tap.opened(sent.append)
    feed(b"".join(FRAMES))
    assert tap.repeat(seed=3) == len(MESSAGES)
    (again,) = sent
    assert sorted(again) == sorted(b"".join(MESSAGES))
