"""What tests of several packages share: waiting, faults, one conformance suite per port.

Only tests import this.
"""
