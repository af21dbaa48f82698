-- The node's own clock, which every script reads once: whole microseconds.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
