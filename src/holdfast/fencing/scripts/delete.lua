-- Behind fence.lua: how many of the keys there were.
local deleted = 0
for position = 2, #KEYS do
    deleted = deleted + redis.call('DEL', KEYS[position])
end
return {1, deleted}
