"""Protocols: written once as coroutines over operations, run by every driver. No clock, no I/O, no chance."""
