"""``holdfast demo``: a demonstration of locks with real processes, measured.

command    the command and its options
play       one performance: starts the processes, plays the scenes, cleans up
scenes     what happens in each scene, and what must be true afterwards
troupe     the worker processes, as the main process sees them
worker     the code of a worker process
data       the data of the workers: the log of a job, a shop, a ledger
stages     the output: a live display, lines, or none
outcome    the results of a scene
"""
