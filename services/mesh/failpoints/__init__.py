"""Failpoints: named places at which a process can be made to die, freeze, fail or fall silent.

What a crash leaves behind depends on where it strikes; the interesting places are a few instants
between a commit and its consequence, which chance hardly ever hits. A failpoint names such an
instant, so that a test can hit each of them, every time.

**Places are woven in, not written in.** A service lists its places in its module `failpoints`: a
name, what the instant means, the method, and whether it lies before or after it. Only a process
that is started with `--failpoints-enabled` loads that list and wraps those methods. So production
code has no trace of them, and a process without the flag pays nothing: no check, no branch, no
import. With the flag an unarmed place costs a call and one look at an attribute.

    scheduler.claim.committed      after  PostgresShard.claim     claimed, and not sent yet
    worker.locked                  after  Tenure._lock            locked, and not started yet

**Orders** say what happens when a place is reached: `action[:argument][@n]`.

    kill             SIGKILL to itself
    pause:10s        the whole process stands still (SIGSTOP), event loop, timers and threads
    delay:2s         only the call that came by waits; the rest of the process goes on
    raise            the error that this place must be ready for, such as an unknown outcome
    raise:defect     an error that nobody expects there
    drop             before a call: it is not made; after it: its answer never comes
    …@3              on the third time, and then no more; `…@3+` from the third time on

Without `@` an order is for the next time, once. Orders come from the environment
(`JOBMESH_FAILPOINTS=scheduler.claim.committed=kill@2,worker.locked=pause:10s`; those for other
services are passed over, since workers inherit the Scaler's environment) and over gRPC
(`FailpointService`), which is served only by a process with the flag.

Each time a place acts it first writes a line into the log and into `failpoints_journal`, if there
is one: a test that armed a place and finds no line has tested nothing.

`mutant` (same flag) names a function `module:name` that is called before the service is built, and
may break anything. The mutants that prove our checker stand with the tests; none is ever shipped.

Parts: `order` (what is asked for), `place` (where), `registry` (which is armed, how often each was
reached), `acting` (how it is done), `weaving` (how it gets in), `opening` (all of it, at boot).
"""

from services.mesh.failpoints.order import Action, Order, parse_order
from services.mesh.failpoints.place import Place, When, unforeseen
from services.mesh.failpoints.registry import Failpoints, PointView

__all__ = [
    "Action",
    "Failpoints",
    "Order",
    "Place",
    "PointView",
    "When",
    "parse_order",
    "unforeseen",
]
