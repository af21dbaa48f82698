"""Drivers run protocols: threads, asyncio, and (its place is here) simulation in virtual time."""
