-- Refresh, values, limits, inspection and watchers, as in rules/transitions.py.

local function refresh(record, ask, now)
  local expires_at, nonce = now + PATIENCE_SECONDS, ask[1]
  local place = waits_at(record, nonce)
  if place then
    record.deadlines[place] = expires_at
    return queued(record, place, next_event_at(record), now), true
  end
  place = place_of(record.watchers, nonce)
  if place and record.watchers[place][WATCHES_UNTIL] > now then
    local watcher = { nonce, record.watchers[place][WATCHING], expires_at }
    record.watchers = with_row(record.watchers, place, watcher)
    return DONE, true
  end
  return { 'absent' }
end

-- A stored value: schema, token, its expiry in microseconds of wall time, the bytes.
local function set_value(record, ask, _, wall_us, value_key)
  local data, retention, nonce = ask[1], tonumber(ask[2]), ask[3]
  local place = place_of(record.holders, nonce)
  if not place then
    return gone(record, nonce)
  end
  local forget_at_us = wall_us + math.floor(retention * 1000000)
  local value = cmsgpack.pack(SCHEMA, record.holders[place][TOKEN], forget_at_us, data)
  record.value_is_new = #record.watchers > 0 and redis.call('GET', value_key) ~= value
  redis.call('SET', value_key, value, 'PX', math.ceil(retention * 1000) + 1)
  return DONE, true
end

local function resize(record, ask, now)
  local declared, limit = tonumber(ask[1]), tonumber(ask[2])
  local refused = mismatch(record, 'semaphore', declared)
  if refused then
    return refused
  end
  if record.declared == 0 then
    record.declared = declared
  end
  record.kind, record.limit = 'semaphore', limit
  deal_turns(record, now)
  return DONE, true
end

local function stored_value(value_key, wall_us)
  local raw = redis.call('GET', value_key)
  if not raw then
    return {}
  end
  local _, token, forget_at_us, data = cmsgpack.unpack(raw)
  return forget_at_us > wall_us and { data, token, forget_at_us } or {}
end

local function inspect(record, _, now, wall_us, value_key)
  local queue, ended, watchers = {}, {}, {}
  for place, waiter in ipairs(record.queue) do
    local nonce, mode, client, owner, since = cmsgpack.unpack(waiter)
    local deadline, turn_at = exact(record.deadlines[place]), exact(record.turns[place])
    queue[place] = { nonce, client, owner, mode, exact(since), deadline, turn_at }
  end
  for place, attempt in ipairs(record.ended) do
    ended[place] = { attempt[NONCE], attempt[REASON], attempt[NOTE], exact(attempt[FORGET_AT]) }
  end
  for place, watcher in ipairs(record.watchers) do
    watchers[place] = { watcher[NONCE], watcher[WATCHING], exact(watcher[WATCHES_UNTIL]) }
  end
  return {
    'snapshot', exact(now), record.kind or '', record.token, record.limit, record.declared,
    stored_value(value_key, wall_us), with_holders({}, record.holders), queue, ended, watchers,
  }
end

local function watch(record, ask, now, wall_us, value_key)
  local client, nonce = ask[1], ask[2]
  local watchers = without(record.watchers, nonce)
  watchers[#watchers + 1] = { nonce, client, now + PATIENCE_SECONDS }
  record.watchers = watchers
  return inspect(record, ask, now, wall_us, value_key), true
end

local function unwatch(record, ask)
  if not place_of(record.watchers, ask[1]) then
    return DONE
  end
  record.watchers = without(record.watchers, ask[1])
  return DONE, true
end
