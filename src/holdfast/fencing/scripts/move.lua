-- Hand the resource to another source, deliberately: its numbers begin anew. ARGV[1] is the mark to begin with.
local stored = redis.call('GET', KEYS[1])
local source = string.match(ARGV[1], '^1:%d+:[^:]*:([^:]*):')
local had_source = stored and string.match(stored, '^1:%d+:[^:]*:([^:]*):')
if stored and not had_source then
    return {0, stored}
end
if had_source ~= source then
    redis.call('SET', KEYS[1], ARGV[1])
end
return {1}
