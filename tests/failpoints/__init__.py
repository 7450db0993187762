"""Every failpoint struck, on a real mesh, with the checker of the chaos runs as the judge.

    places      every failpoint of every service, from their own lists: none can be forgotten
    cells       failpoint x action; what has to be done so that work passes there
    rig         the mesh that is struck: quick leases, a warden that restarts what died
    strike      one cell: load, strike, heal, settle, dump, check
    __main__    the whole matrix as a table: `make chaos-failpoints`

A cell whose failpoint did not act is a failure: it has tested nothing.
"""
