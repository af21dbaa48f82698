#!lua flags=allow-oom
-- Break. KEYS: the record. ARGV: token (empty: any), reason.
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

return apply(break_, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
