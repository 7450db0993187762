"""The scheduler at work: agents with one duty each, knowing ports only.

board     DueBoard: where word of due work arrives, and goes on to the other schedulers
claimer   Claimer: credit meets due work
claims    Claim, ClaimRules, Lanes: how claims are made, what one is, what is remembered
parking   Parking: grabs that wait, expire, or are sent elsewhere on drain
slots     SlotGrabber: the due times of the coming slot, each fired at its time
firing    ScheduleFirer: the next runs of schedules
sweeping  Sweeper: dispatches that got lost
rescuing  Rescuer: jobs of workers that lost their lease
expiring  Expirer: jobs that were not started in time
releasing Releaser: jobs whose parents have ended
rounds    Rounds: the duties of one shard, each at its own interval
alarm     Alarm: rings once, at the earliest time it was set to
shards    Shards: the stores, each behind its gate
members   Membership: our lease, the other schedulers, who keeps which shard
follow    Follower: one watch on the registry
keeping   Keeping: one shard with its agents and rounds
scheduler Scheduler: all agents, and who tells whom
console   Console: what operators see and do
measures  Measures: the numbers
"""
