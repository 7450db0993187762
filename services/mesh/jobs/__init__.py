"""The job model that every service shares: words, states and decisions. Pure, no I/O.

    SCHEDULED ──claim──▶ DISPATCHED ──start──▶ RUNNING ──▶ SUCCEEDED | FAILED
        ▲                    │                    │
        └── sweep, rescue, hand back, retry ──────┘     CANCELLED, EXPIRED: ended from outside

What holds, whoever writes the row:

* **The fence is `dispatch_no`.** Each claim adds one. A report shows the fence it was handed, and a
  report with any other fence is refused. Nothing else (no lock, no lease, no clock) decides who may
  write.
* **Terminal is final.** After SUCCEEDED, FAILED, CANCELLED or EXPIRED a job has no further event.
  Redriving a failed job makes a new job.
* **Versions are gapless.** Every transition adds one to the row's version and writes one event with
  that version. Attempts are not stored: they are a fold over the events (`attempts_from_events`).
* **Attempts are counted by the claim**, before the handler runs, so that a job which kills its
  worker runs out of them. What was not the job's fault gives the attempt back: a hand back, a
  sweep, and the first `LOSS_BUDGET` losses.

Modules: `ids` (job ids and buckets), `states` (the transition table), `retry` (what follows a
failure), `model` (the records), `reports` (what workers say), `attempts` (the fold), `topology`
(buckets and shards), `health` (a shard's breaker), `schedules` and `recurrence` (nominal times).
"""
