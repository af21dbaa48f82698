#!lua
-- SetValue. KEYS: the record, the value. ARGV: data, retention, nonce.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquiring
--@include rules/giving_back
--@include rules/looking
--@include rules/applying

return apply(set_value, ARGV, KEYS[1], redis.call('GET', KEYS[1]), KEYS[2])
