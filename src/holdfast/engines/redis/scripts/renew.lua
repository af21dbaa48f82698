-- Renew. KEYS: the record. ARGV: ttl, nonce. See rules/living_on.lua.
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquiring
--@include rules/giving_back
--@include rules/living_on
--@include rules/applying

return apply(KEYS[1], nil, renew, ARGV)
