-- The clock of the engine: the server's clock, which every script reads once.
local time = redis.call('TIME')
local wall_us = time[1] * 1000000 + time[2]
local now = wall_us / 1000000
