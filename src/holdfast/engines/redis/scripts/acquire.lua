#!lua
-- Acquire. KEYS: the record. ARGV: what a record of this kind and limit has before its token (kind, limit,
-- declared), the claim (what the holder's fields end with), ttl, how long to keep the record in milliseconds,
-- options, nonce. See rules/acquiring.lua.
--@include rules/constants
local raw = redis.call('GET', KEYS[1])
--@include clock

-- Nobody holds it, nobody waits, and nothing special is asked for: it is granted without a closer look.
local is_idle, last, _ = true, 0, nil
if raw then
  local beginning = BEGINS_IDLE .. ARGV[1]
  is_idle = string.sub(raw, 1, #beginning) == beginning
  if is_idle then
    is_idle, _, last = pcall(cmsgpack.unpack_limit, raw, 1, #beginning)
  end
end
if is_idle and #ARGV[5] == 2 then
  local token = wall_us > last and wall_us or last + 1
  if token < MAX_TOKEN then
    local grant = cmsgpack.pack(token, ARGV[6], now, now + ARGV[3], token)
    redis.call('SET', KEYS[1], BEGINS_HELD_BY_ONE .. ARGV[1] .. grant .. ARGV[2], 'PX', ARGV[4])
    return token
  end
end

--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquiring
--@include rules/applying

return apply(acquire, ARGV, KEYS[1], raw)
