-- Behind fence.lua: the caller's own script, with its own KEYS and ARGV. It replaces the line below.
local function run(KEYS, ARGV)
--@body
end
local keys, arguments = {}, {}
for position = 2, #KEYS do
    keys[position - 1] = KEYS[position]
end
for position = 2, #ARGV do
    arguments[position - 1] = ARGV[position]
end
local result = run(keys, arguments)
if type(result) == 'table' and result.err then
    return result
end
return {1, result}
