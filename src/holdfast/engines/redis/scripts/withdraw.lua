-- Withdraw. KEYS: the record. ARGV: linger, nonce. See rules/giving_back.lua.
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquiring
--@include rules/giving_back
--@include rules/applying

return apply(KEYS[1], nil, withdraw, ARGV)
