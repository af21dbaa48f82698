#!lua flags=allow-oom
-- Renew. KEYS: the record. ARGV: ttl, nonce.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/release
--@include rules/renew
--@include rules/apply

return apply(renew, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
