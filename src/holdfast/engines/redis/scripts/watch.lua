#!lua
-- Watch. KEYS: the record, the value. ARGV: client, nonce.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquire
--@include rules/release
--@include rules/inspection
--@include rules/apply

return apply(watch, ARGV, KEYS[1], redis.call('GET', KEYS[1]), KEYS[2])
