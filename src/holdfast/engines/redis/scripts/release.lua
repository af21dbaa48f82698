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

--@include rules/crowd
--@include rules/channels

-- It is the turn of the first of those who wait.
if is_crowd and ARGV[1] == '0' and #holders == 1 and #turns == 0 and holders[1][NONCE] == ARGV[2] and
  holders[1][EXPIRES_AT] > now then
  local latest = now
  for place = 1, #deadlines do
    latest = math.max(latest, deadlines[place])
  end
  local text = cmsgpack.pack(SCHEMA, FULL, kind, limit, declared, last_token, {}, queue, deadlines, { now }, {}, {})
  redis.call('SET', KEYS[1], text, 'PX', math.ceil((latest - now) * 1000) + RETENTION_MS)
  local nonce, _, client = cmsgpack.unpack(queue[1])
  wake(KEYS[1], client, nonce)
  return DONE
end

--@include rules/record
--@include rules/queueing
--@include rules/giving_back
--@include rules/applying

return apply(release, ARGV, KEYS[1], raw)
