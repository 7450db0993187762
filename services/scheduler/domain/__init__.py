"""What the scheduler decides, as plain data structures: no I/O, no clock of its own, no tasks.

credit   CreditBook: which workers have room, and whose turn it is
flags    DueFlags: which (type, shard) may have due work
pace     Pace: whether to claim now or to let a batch form
calls    CallPlan: when workers are asked for room
shares   Share: which claims leave a backlog aside
gate     Gate: whether a shard may be asked at all
times    ShardClock: what the shard's clock shows, seen from here
timers   DueTimers: the due times of the slot, and which of them have come
rereading  Rereading: when to read a slot out of turn
duties   who looks after which shard
word     Word: what a nudge says
limits   BatchLimits: how many jobs fit one message
places   LimitBook: what is held of the limits of types, and whose turn it is to claim
views    what operators are shown
"""
