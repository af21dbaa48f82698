"""Measurements of Holdfast beside its peers and the raw limit of the machine. Never part of the tests.

Every speed here is a ratio: contestants take turns in short slices within one run, so that whatever
else the machine does hits all of them alike. `README.md` beside this file says how to read the results.
"""
