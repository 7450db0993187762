"""`python -m jobmesh.cli` does what the `jobmesh` command does."""

from jobmesh.cli.app import main

main()
