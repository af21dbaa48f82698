#!lua flags=no-writes,allow-oom
-- ReadCell. KEYS: the value.
--@include rules/constants
--@include clock
--@include rules/cell

return cell_state(redis.call('GET', KEYS[1]))
