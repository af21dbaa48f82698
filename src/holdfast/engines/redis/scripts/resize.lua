#!lua
-- Resize. KEYS: the record. ARGV: declared, limit.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquire
--@include rules/release
--@include rules/inspection
--@include rules/apply

return apply(resize, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
