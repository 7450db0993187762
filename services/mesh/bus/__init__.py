"""The broker: nudges, grabs, hints. Fast, in memory, and never trusted.

Every message may be lost, repeated or late. What was lost is found by a sweep, what came twice is
refused by the row, so nothing here stores, acknowledges or repeats. What the bus does promise:

No silent loss on our side
    `publish` raises DependencyUnavailable while there is no connection, and when the server does
    not keep up; nothing is buffered to be delivered, or lost, later. A message handed to a
    connection that dies at that moment is lost all the same, and only a sweep knows.

One connection for ever
    Lost, it is made again, with jitter, for as long as the process lives, whatever the reason
    (server gone, refused login, too slow). Subscriptions are ours, not the connection's: each new
    connection gets them all before it counts as connected. `Dependency.up` and `down` follow it.

Callbacks in place
    Messages of one subscription are handed over one after the other, from one task, without a task
    each. A callback that returns an awaitable is awaited before the next message; meanwhile a few
    may queue up, and beyond that they are dropped and counted.

One inbox per process
    Answers come to one subscription, opened once. A request is a `publish` with an address in that
    inbox as `reply`. If nobody listens to the subject, the server says so at once, and the inbox
    gets a message with `no_responders` set.

`subjects` has the name of every subject, `port` the types, `nats` the adapter, `memory` the same
within one process, for tests.
"""

from services.mesh.bus.port import Bus, Callback, Inbox, InboxCallback, Message, Subscription
from services.mesh.bus.subjects import SCHEDULERS, Subjects

__all__ = [
    "SCHEDULERS",
    "Bus",
    "Callback",
    "Inbox",
    "InboxCallback",
    "Message",
    "Subjects",
    "Subscription",
]
