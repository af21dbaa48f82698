"""The lab: real servers for tests, and a proxy that breaks connections on purpose.

Tests, benchmarks and experiments use it. The library itself does not import it.
"""
