"""Protocols: coroutines over effects, written once and run by every driver. No clock, I/O or randomness."""
