#!lua flags=allow-oom
-- Downgrade. KEYS: the record. ARGV: the reader's nonce, nonce.
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

return apply(downgrade, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
