#!lua
-- Resize. KEYS: the record. ARGV: declared, limit.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquiring
--@include rules/giving_back
--@include rules/looking
--@include rules/applying

return apply(resize, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
