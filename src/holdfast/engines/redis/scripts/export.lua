#!lua flags=allow-oom
-- Export. KEYS: the record. ARGV: seal, nonce.
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

return apply(export, ARGV, KEYS[1], redis.call('GET', KEYS[1]))
