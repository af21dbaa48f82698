"""The objects that users hold: what all facades share, and those of the recipes for threads and for asyncio.

A facade holds no logic: it names its caller, runs a recipe by the client's driver and wraps the result. The
facades of locks themselves are ``client.py`` and ``aio.py``; ``base.py`` is what they share.
"""
