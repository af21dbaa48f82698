#!lua flags=allow-oom
-- Adopt. KEYS: the record. ARGV: client, owner, seal, whether it renews, nonce.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquiring
--@include rules/giving_back
--@include rules/living_on
--@include rules/handing_over
--@include rules/applying

return apply(adopt, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
