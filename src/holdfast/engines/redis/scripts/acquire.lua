#!lua
-- Acquire. KEYS: the record. ARGV: the bytes of a record of this kind and limit before its token (kind, limit,
-- declared), the claim (the last fields of the holder), ttl, how long to keep the record in milliseconds, options,
-- nonce. See rules/acquire.lua.
--@include rules/constants
local raw = redis.call('GET', KEYS[1])
--@include clock

-- Short path: no holder, no waiter, and a plain request. The lock is granted without decoding the record.
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

--@include rules/contended

-- Short path: the turn of this attempt has come. The next waiter's turn comes with the release.
if is_contended and #ARGV[5] == 2 and #holders == 0 and #turns == 1 and turns[1] + TURN_SECONDS > now and
  string.sub(raw, 3, 2 + #ARGV[1]) == ARGV[1] and cmsgpack.unpack(queue[1]) == ARGV[6] then
  local token, expires_at = math.max(wall_us, last_token + 1), now + ARGV[3]
  if token < MAX_TOKEN then
    table.remove(queue, 1)
    table.remove(deadlines, 1)
    local holder, latest = { ARGV[6], now, expires_at, token, cmsgpack.unpack(ARGV[2]) }, expires_at
    if #queue == 0 then
      redis.call('SET', KEYS[1], BEGINS_HELD_BY_ONE .. ARGV[1] .. cmsgpack.pack(token, unpack(holder)), 'PX', ARGV[4])
      return token
    end
    for place = 1, #deadlines do
      latest = math.max(latest, deadlines[place])
    end
    local text = cmsgpack.pack(SCHEMA, FULL, kind, limit, declared, token, { holder }, queue, deadlines, {}, {}, {})
    redis.call('SET', KEYS[1], text, 'PX', math.ceil((latest - now) * 1000) + RETENTION_MS)
    return token
  end
end

-- Short path: there are waiters already. The attempt joins the queue behind them, unless it is in it.
if is_contended and ARGV[5] == WAITS_IN_TURN and #holders == 1 and #turns == 0 and holders[1][EXPIRES_AT] > now and
  holders[1][NONCE] ~= ARGV[6] and string.sub(raw, 3, 2 + #ARGV[1]) == ARGV[1] then
  local nonce, client, owner, mode = cmsgpack.pack(ARGV[6]), cmsgpack.unpack(ARGV[2])
  local place, soonest, waits = #queue + 1, holders[1][EXPIRES_AT], false
  local latest, holder = soonest, holders[1][CLIENT]
  for other = 1, #queue do
    waits = waits or string.sub(queue[other], 1, #nonce) == nonce
    soonest, latest = math.min(soonest, deadlines[other]), math.max(latest, deadlines[other])
  end
  if not waits then
    local deadline = now + PATIENCE_SECONDS
    local _, _, before = cmsgpack.unpack(queue[place - 1])
    queue[place], deadlines[place] = nonce .. cmsgpack.pack(mode, client, owner, now, ARGV[2]), deadline
    soonest, latest = math.min(soonest, deadline), math.max(latest, deadline)
    local text = cmsgpack.pack(SCHEMA, FULL, kind, limit, declared, last_token, holders, queue, deadlines, {}, {}, {})
    redis.call('SET', KEYS[1], text, 'PX', math.ceil((latest - now) * 1000) + RETENTION_MS)
    local answer = { 'queued', place - 1, struct.pack('>d', soonest - now + (place - 1) * TURN_SECONDS) }
    if holder ~= '' then
      answer[4] = holder
    end
    if before ~= '' and before ~= holder then
      answer[#answer + 1] = before
    end
    return answer
  end
end

--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquire
--@include rules/apply

return apply(acquire, ARGV, KEYS[1], raw)
