"""The objects that users hold, above recipes: one folder for threads, one for asyncio.

A facade holds no logic: it names its caller, runs a recipe by the client's driver and wraps the result. The
facades of locks themselves are ``client.py`` and ``aio.py``.
"""
