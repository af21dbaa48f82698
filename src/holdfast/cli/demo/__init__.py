"""``holdfast demo``: what locks are for, shown with real processes and measured.

command    the command and its options
play       one performance: the processes, the scenes one after the other, the end
scenes     what happens in each scene, and what must be true afterwards
troupe     the worker processes, as the director sees them
worker     what a worker process does
data       what the workers work on: a job's log, a shop, a ledger
stages     where it is shown: a live display, lines, or nowhere
outcome    what a scene found
"""
