-- Acquire. KEYS: the record. ARGV: how an idle record of this kind and limit begins (schema, kind, limit,
-- declared), the claim (what the holder's fields end with), ttl, how long to keep the record in milliseconds,
-- options, nonce. See rules/acquiring.lua.
local raw = redis.call('GET', KEYS[1])
--@include clock

-- Nobody holds it, nobody waits, and nothing special is asked for: it is granted without a closer look.
local last, more = 0, nil
if raw then
  local size = #ARGV[1]
  if string.sub(raw, 1, size) == ARGV[1] then
    last, more = cmsgpack.unpack(string.sub(raw, size + 1))
  else
    last = nil
  end
end
if last and not more and #ARGV[5] == 2 then
  local token = wall_us > last and wall_us or last + 1
  if token < 9007199254740992 then
    local grant = cmsgpack.pack(token, ARGV[6], now, now + ARGV[3], token)
    redis.call('SET', KEYS[1], ARGV[1] .. grant .. ARGV[2], 'PX', ARGV[4])
    return token
  end
end

--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquiring
--@include rules/applying

local _, kind = cmsgpack.unpack(ARGV[1])
return apply(KEYS[1], nil, acquire, ARGV, kind)
