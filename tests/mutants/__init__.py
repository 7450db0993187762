"""Meshes that are broken on purpose: a checker that nobody has seen fail proves nothing.

    breaking    the ways to break a process; each is named by JOBMESH_MUTANT and called at its boot
    trials      which services are broken, what is done meanwhile, which rule must object
    rules       rules beyond those of the chaos runs' checker
    __main__    all of them as a table: `make chaos-mutants`

None of this is shipped: the services only know how to call a function that a setting names, and
only if they were started with `failpoints_enabled`. The faults of a trial also run against a mesh
that is not broken (the control), where nothing may be found.
"""
