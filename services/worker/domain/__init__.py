"""The worker's rules: which attempts it takes, how many more it asks for, how an attempt may end.

Pure: no waiting, no clock, no wire. Times are passed in as numbers.
"""
