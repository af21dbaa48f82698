-- Living on: the functions of that part of rules/transitions.py.

local function replacing(record, place, holder)
  return replaced(record, { holders = with_place(record.holders, place, holder) })
end

-- A handler that changes the holder's fields to what `change` says of them.
local function changing_holder(record, nonce, change)
  local holder, place = find_holder(record, nonce)
  if not holder then
    return record, gone(record, nonce)
  end
  return replacing(record, place, with_fields(holder, change(holder))), DONE
end

-- Its end, one ttl from now at least, unless max_hold ends it before.
local function extended(holder, ttl, now)
  return math.max(holder[EXPIRES_AT], capped(now + ttl, holder[UNTIL]))
end

local function renew(record, ask, now)
  local ttl, nonce = tonumber(ask[1]), ask[2]
  return changing_holder(record, nonce, function(holder)
    return { [EXPIRES_AT] = extended(holder, ttl, now), [TTL] = ttl }
  end)
end

local function stop(record, ask)
  return changing_holder(record, ask[1], function() return { [RENEWS] = false } end)
end

local function export(record, ask, now)
  return changing_holder(record, ask[1], function(holder)
    return { [CLIENT] = '', [RENEWS] = false, [EXPIRES_AT] = extended(holder, holder[TTL], now) }
  end)
end

local function adopt(record, ask, now)
  local client, owner, renews, nonce = unpack(ask)
  local holder, place = find_holder(record, nonce)
  if not holder then
    return record, gone(record, nonce)
  elseif holder[CLIENT] ~= '' and holder[CLIENT] ~= client then
    return record, { 'gone', 'stolen', 'it was not exported, or somebody else adopted it' }
  end
  local adopted = with_fields(holder, {
    [CLIENT] = client, [OWNER] = owner, [RENEWS] = renews == '1',
    [EXPIRES_AT] = extended(holder, holder[TTL], now),
  })
  local after = replacing(record, place, adopted)
  return after, granted(after, adopted, now)
end

local function refresh(record, ask, now)
  local expires_at, nonce = now + PATIENCE_SECONDS, ask[1]
  local place = find_waiter(record, nonce)
  if place then
    local waiter = with_fields(record.queue[place], { [EXPIRES_AT] = expires_at })
    local after = replaced(record, { queue = with_place(record.queue, place, waiter) })
    return after, queued(after, place, now)
  end
  for index, watcher in ipairs(record.watchers) do
    if watcher[NONCE] == nonce then
      local renewed = with_fields(watcher, { [WATCHES_UNTIL] = expires_at })
      return replaced(record, { watchers = with_place(record.watchers, index, renewed) }), DONE
    end
  end
  return record, { 'absent' }
end
