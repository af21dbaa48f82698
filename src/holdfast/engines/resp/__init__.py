"""What the Redis and Redlock engines share of the protocol RESP: connections, handshake, scripts, settings.

This folder is no engine: no URL names it.
"""
