"""Drivers run the protocols: on threads and on asyncio. The simulator of the tests is a third."""
