"""Enqueue: the public face of the mesh. Stateless; any replica answers any call.

* **Validates.** Rules stand in the contract; what they cannot say (is this time absurd, is this
  type known, is this part of the contract filled yet) is decided in `domain`. A bad item of a
  batch gets its own error and does not hinder the others. Nothing is stored before everything
  about it is checked.
* **Stores large inputs first.** What exceeds the inline threshold goes to the input store before
  the row exists, so that a row never links to an object that is not there. An object whose row
  failed is an orphan, collected later.
* **Coalesces.** Single calls that arrive while a batch is under way, or right after the last one
  began, form the next batch by themselves. A lone call goes at once; nobody ever waits for a batch
  to fill. See `app.coalescing`. They travel to the Orchestrator over one open call where there is
  one: see `adapters.put_line`. Small batches of one namespace travel together in the same way: see
  `adapters.company`. Only a namespace that sends more than its quota's rate waits, a fifth of a
  second at most: see `domain.quotas`.
* **Streams.** An EnqueueStream is read only as fast as the shards write: a bounded number of
  items is read and not acknowledged, in each stream and in all together. See `app.stream`.
* **Chains.** Items of one batch may wait for earlier ones. They are stored in rounds: those that
  wait for nobody first, then those that wait for them, whose ids are known by then. A parent is
  stored before its child as everywhere else, so nothing new has to be proved. See `domain.chains`.
* **Passes on.** Jobs live with the Orchestrators; this service has no database login. A lost
  reply is repaired by the idempotency key, never by guessing: see DESIGN rule 4 and 5.
* **Watches.** A watch is a snapshot followed by every transition. Hints from the broker make it
  fast; versions make it right: a hint that does not continue what was delivered triggers a re-
  read of the events, and all watched jobs are compared with their rows every few seconds, since a
  lost hint may have been the last one. Broker hints are only subscribed to while somebody
  watches.

* **Watches by filter** follow the order of events that each shard has. One tail per shard reads
  it for all of them, page by page and below the oldest open transaction, so that what commits late
  is not skipped; hints only ring a bell. The token is a place in each shard's order. See
  `app.filter_hub`, `app.tails` and `domain.filtering`.

Watch of one job, by version

    snapshot v3 ──hint v4──▶ deliver ──hint v6──▶ gap: read events after v4 ──▶ v5, v6 delivered
                                   └─(v6's hint lost)── re-read after 2 s ───────────▶ v5, v6

Ready means: NATS connected, known types loaded from etcd. Orchestrators and the object store are
asked when needed; if they are away the call says so.

Drain: no new calls; watches are sent `drain` with their token and end; streams of jobs acknowledge
what was read and end; calls under way finish.
"""
