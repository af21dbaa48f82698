"""The lab: real servers to throw away, and a proxy that breaks connections on purpose.

Tests, benchmarks and experiments live on it. The library proper knows nothing of it.
"""
