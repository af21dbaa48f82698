#!lua flags=allow-oom
-- Withdraw. KEYS: the record. ARGV: linger, nonce.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/release
--@include rules/apply

return apply(withdraw, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
