"""Measuring the mesh: `make bench` starts one of its own and prints what it found.

`workloads` are what is measured, `load` submits and follows, `watchers` keep watches open,
`handlers` are the job types, `cpu` reads the processes' CPU and memory from /proc, `ground` has the
machine and the pools, `scaling` other sizes of mesh, `picture` draws. `growth` fills a shard,
`peers` are other job queues, `capacity` is a model past one machine, `timing` is about punctuality.
Figures on a shared machine are noisy: compare two of them from one run, and trust CPU per job
before any rate.
"""
