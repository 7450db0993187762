"""One suite of tests per port, run against every adapter of it.

A test module subclasses the suites of a port once per adapter and gives each a fixture with the
adapter; what the in-memory one promises is then what the real one does.
"""
