"""`python -m jobmesh.cli` does what the `jobmesh` command does."""

from jobmesh.cli import main

main()
