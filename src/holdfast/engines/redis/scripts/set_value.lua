#!lua
-- SetValue. KEYS: the record, the value. ARGV: data, retention, nonce.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquire
--@include rules/release
--@include rules/inspection
--@include rules/apply

return apply(set_value, ARGV, KEYS[1], redis.call('GET', KEYS[1]), KEYS[2])
