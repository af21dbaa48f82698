-- Inspect. KEYS: the record, the value. See rules/more.lua.
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquiring
--@include rules/giving_back
--@include rules/living_on
--@include rules/applying
--@include rules/more

return apply(KEYS[1], KEYS[2], inspect, ARGV)
