"""Times on the wire are exact, on either side of the epoch."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from services.mesh.wire.values import datetime_of, set_time, timestamp

times = st.datetimes(datetime(1900, 1, 1), datetime(2300, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(times)
def test_a_time_that_is_filled_in_place_is_the_one_that_is_made(time):
    message = Timestamp()
    set_time(message, time)
    assert message == timestamp(time)
    assert datetime_of(message) == time


def test_no_time_leaves_the_message_as_it_is():
    message = Timestamp(seconds=5)
    set_time(message, None)
    assert message == Timestamp(seconds=5)
