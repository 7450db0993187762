"""The same workloads on other job queues, side by side with ours: `make bench-peers`.

Each peer is a module here that runs in an environment of its own (`requirements/peers.txt`) and
never imports ours: `serve(url)` is its worker process, `Client` submits and knows how many jobs
have not ended. `measure` drives one peer; `__main__` starts servers with durable settings, runs
ours and then each peer in one go, and prints ratios. Handlers write down when they started, beside
what they were given: the time at which they were submitted, or due.
"""
