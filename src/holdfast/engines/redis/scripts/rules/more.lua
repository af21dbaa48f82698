-- More than holding: the functions of that part of rules/transitions.py.

local function downgrade(record, ask, now, wall_us, admits)
  local reader_nonce, nonce = ask[1], ask[2]
  local reader = find_holder(record, reader_nonce)
  if reader then
    return record, granted(record, reader, now)
  elseif find_ended(record, reader_nonce) then
    return record, gone(record, reader_nonce)
  end
  local writer, place = find_holder(record, nonce)
  if not writer or writer[MODE] ~= 'write' then
    return record, gone(record, nonce)
  end
  local token = next_token(record, wall_us)
  if not token then
    return record, { 'exhausted' }
  end
  reader = with_fields(writer, {
    [NONCE] = reader_nonce, [MODE] = 'read', [TOKEN] = token, [SINCE] = now,
    [EXPIRES_AT] = extended(writer, writer[TTL], now),
  })
  local after = turns(replaced(replacing(record, place, reader), { token = token }), now, admits)
  return after, granted(after, reader, now)
end

-- The value as stored: schema, token, when to forget it in microseconds of wall time, the bytes.
local function set_value(record, ask, now, wall_us, _, value_key)
  local data, retention, nonce = ask[1], tonumber(ask[2]), ask[3]
  local holder = find_holder(record, nonce)
  if not holder then
    return record, gone(record, nonce)
  end
  local forget_at_us = wall_us + math.floor(retention * 1000000)
  local value = cmsgpack.pack(SCHEMA, holder[TOKEN], forget_at_us, data)
  local is_new = #record.watchers > 0 and redis.call('GET', value_key) ~= value
  redis.call('SET', value_key, value, 'PX', string.format('%.0f', math.ceil(retention * 1000) + 1))
  return replaced(record, { value_is_new = is_new }), DONE
end

local function resize(record, ask, now)
  local declared, limit = tonumber(ask[1]), tonumber(ask[2])
  local refused = mismatch(record, 'semaphore', declared)
  if refused then
    return record, refused
  end
  if record.declared ~= 0 then
    declared = record.declared
  end
  local after = replaced(record, { kind = 'semaphore', declared = declared, limit = limit })
  return turns(after, now, semaphore_admits), DONE
end

local function told_value(value_key, wall_us)
  local raw = redis.call('GET', value_key)
  if not raw then
    return {}
  end
  local _, token, forget_at_us, data = cmsgpack.unpack(raw)
  return forget_at_us > wall_us and { data, token, forget_at_us } or {}
end

local function inspect(record, _, now, wall_us, _, value_key)
  local queue, ended, watchers = {}, {}, {}
  for place, waiter in ipairs(record.queue) do
    queue[place] = {
      waiter[NONCE], waiter[CLIENT], waiter[OWNER], waiter[MODE], exact(waiter[SINCE]),
      exact(waiter[EXPIRES_AT]), exact(waiter[TURN_AT]),
    }
  end
  for place, attempt in ipairs(record.ended) do
    ended[place] = { attempt[NONCE], attempt[REASON], attempt[NOTE], exact(attempt[FORGET_AT]) }
  end
  for place, watcher in ipairs(record.watchers) do
    watchers[place] = { watcher[NONCE], watcher[WATCHING], exact(watcher[WATCHES_UNTIL]) }
  end
  return record, {
    'snapshot', exact(now), record.kind or '', record.token, record.limit, record.declared,
    told_value(value_key, wall_us), with_holders({}, record.holders), queue, ended, watchers,
  }
end

local function watch(record, ask, now, wall_us, admits, value_key)
  local client, nonce = ask[1], ask[2]
  local watchers = filtered(record.watchers, function(watcher) return watcher[NONCE] ~= nonce end)
  watchers[#watchers + 1] = { nonce, client, now + PATIENCE_SECONDS }
  local after = replaced(record, { watchers = watchers })
  local _, answer = inspect(after, ask, now, wall_us, admits, value_key)
  return after, answer
end

local function unwatch(record, ask)
  local others = filtered(record.watchers, function(watcher) return watcher[NONCE] ~= ask[1] end)
  if #others == #record.watchers then
    return record, DONE
  end
  return replaced(record, { watchers = others }), DONE
end
