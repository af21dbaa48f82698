-- Renew, as in rules/transitions.py.

-- The expiry, at least one ttl from now, unless max_hold ends the lease before.
local function extended(holder, ttl, now)
  return math.max(holder[EXPIRES_AT], capped(now + ttl, holder[UNTIL]))
end

-- Changed in place: `is_visible_change` does not compare these fields.
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
