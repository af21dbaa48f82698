-- Behind fence.lua: fields and values of one hash, in portions that fit on Lua's stack. How many were new.
local added = 0
for first = 2, #ARGV, 4000 do
    added = added + redis.call('HSET', KEYS[2], unpack(ARGV, first, math.min(first + 3999, #ARGV)))
end
return {1, added}
