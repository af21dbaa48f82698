#!lua flags=allow-oom
-- Stop. KEYS: the record. ARGV: nonce.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquire
--@include rules/release
--@include rules/renew
--@include rules/handover
--@include rules/apply

return apply(stop, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
