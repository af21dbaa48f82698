-- Living on: the functions of that part of rules/transitions.py.

-- Its end, one ttl from now at least, unless max_hold ends it before.
local function extended(holder, ttl, now)
  return math.max(holder[EXPIRES_AT], capped(now + ttl, holder[UNTIL]))
end

-- A holder to be changed, in the place of the one that is there; nil: it is gone.
local function take_holder(record, nonce)
  local place = place_of(record.holders, nonce)
  if not place then
    return nil
  end
  local holder = { unpack(record.holders[place]) }
  record.holders = with_row(record.holders, place, holder)
  return holder
end

local function renew(record, ask, now)
  local ttl, nonce = tonumber(ask[1]), ask[2]
  local holder = take_holder(record, nonce)
  if not holder then
    return gone(record, nonce)
  end
  holder[EXPIRES_AT], holder[TTL] = extended(holder, ttl, now), ttl
  return DONE, true
end
