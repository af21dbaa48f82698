#!lua flags=allow-oom
-- Release. KEYS: the record. ARGV: linger, nonce. See rules/giving_back.lua.
--@include rules/constants
local raw = redis.call('GET', KEYS[1])
--@include clock

-- It is the only holder, nobody waits or watches, and no copy of the attempt may still arrive.
if raw and ARGV[1] == '0' and string.sub(raw, 1, 2) == BEGINS_HELD_BY_ONE then
  local is_read, _, kind, limit, declared, token, nonce, _, expires_at = pcall(cmsgpack.unpack_limit, raw, 7, 2)
  if is_read and nonce == ARGV[2] and expires_at > now then
    local idle = BEGINS_IDLE .. cmsgpack.pack(kind, limit, declared, token)
    redis.call('SET', KEYS[1], idle, 'PX', RETENTION_MS)
    return DONE
  end
end

--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/giving_back
--@include rules/applying

return apply(release, ARGV, KEYS[1], raw)
