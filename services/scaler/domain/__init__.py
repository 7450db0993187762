"""The rules of the Scaler, pure: no clock, no wire, no waiting.

`law.decide` is the heart: what was asked of a pool, what is known of its work and its workers, and
what was decided before, go in; the count the pool should have, and why, come out. The other modules
are the nouns it speaks of.
"""
