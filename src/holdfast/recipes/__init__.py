"""Recipes: what is built above locks, each written once as coroutines over the protocols.

A recipe awaits protocols and effects, and nothing else: no clock, no thread, no socket, no event loop. So the
drivers run it on threads, on asyncio and in virtual time. The objects that users hold are in ``facades``.
"""
