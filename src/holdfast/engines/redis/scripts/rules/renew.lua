-- Living on: the functions of that part of rules/transitions.py.

-- Its end, one ttl from now at least, unless max_hold ends it before.
local function extended(holder, ttl, now)
  return math.max(holder[EXPIRES_AT], capped(now + ttl, holder[UNTIL]))
end

-- In place: nobody who compares what was with what is looks at these fields.
local function renew(record, ask, now)
  local ttl, nonce = tonumber(ask[1]), ask[2]
  local place = place_of(record.holders, nonce)
  if not place then
    return gone(record, nonce)
  end
  local holder = record.holders[place]
  holder[EXPIRES_AT], holder[TTL] = extended(holder, ttl, now), ttl
  return DONE, true
end
