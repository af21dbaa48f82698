"""Records kept by a Redis server, changed by scripts that run where the record lives."""
