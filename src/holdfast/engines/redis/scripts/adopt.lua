#!lua flags=allow-oom
-- Adopt. KEYS: the record. ARGV: client, owner, seal, whether it renews, nonce.
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

return apply(adopt, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
