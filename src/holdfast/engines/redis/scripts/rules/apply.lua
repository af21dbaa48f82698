-- One transition of one record: `apply` of rules/transitions.py, with loading and storing.

-- Whether watchers are notified. Renewals and refreshes do not count: they come every second.
local function is_visible_change(before, after)
  if after.value_is_new or before.limit ~= after.limit then
    return true
  elseif #before.holders ~= #after.holders or #before.queue ~= #after.queue then
    return true
  end
  for place, holder in ipairs(before.holders) do
    local other = after.holders[place]
    if holder[TOKEN] ~= other[TOKEN] or holder[OWNER] ~= other[OWNER] then
      return true
    end
  end
  for place, waiter in ipairs(before.queue) do
    local nonce, other = cmsgpack.unpack(waiter), cmsgpack.unpack(after.queue[place])
    if nonce ~= other then
      return true
    end
  end
  return false
end

-- Notifies waiters whose turn has just come, watchers, and holders whose grant was broken.
local function notify_all(key, before, after, victims)
  local had_turn = {}
  for place = 1, #before.turns do
    local nonce = cmsgpack.unpack(before.queue[place])
    had_turn[nonce] = true
  end
  for place = 1, #after.turns do
    local nonce, _, client = cmsgpack.unpack(after.queue[place])
    if not had_turn[nonce] then
      notify(key, client, nonce)
    end
  end
  if #after.watchers > 0 and is_visible_change(before, after) then
    for _, watcher in ipairs(after.watchers) do
      notify(key, watcher[WATCHING], watcher[NONCE])
    end
  end
  for _, victim in ipairs(victims or {}) do
    if victim[CLIENT] ~= '' then
      notify(key, victim[CLIENT], victim[NONCE])
    end
  end
end

-- Removes expired tombstones and watchers, and all but the newest tombstones.
local function remove_expired(record, now)
  if #record.ended == 0 and #record.watchers == 0 then
    return
  end
  local ended, watchers = {}, {}
  for _, attempt in ipairs(record.ended) do
    if attempt[FORGET_AT] > now then
      ended[#ended + 1] = attempt
    end
  end
  while #ended > ENDED_KEPT do
    table.remove(ended, 1)
  end
  for _, watcher in ipairs(record.watchers) do
    if watcher[WATCHES_UNTIL] > now then
      watchers[#watchers + 1] = watcher
    end
  end
  record.ended, record.watchers = ended, watchers
end

-- A handler changes the record. It returns the answer, whether to store the record, and the broken holders. Where the
-- record is not stored, only time has changed it, and the next script computes the same.
local function apply(handler, ask, key, raw, value_key)
  local record = decode_record(key, raw)
  local before = {
    holders = record.holders, queue = record.queue, turns = record.turns, limit = record.limit,
  }
  settle(record, now)
  local answer, is_changed, victims = handler(record, ask, now, wall_us, value_key, key)
  if is_changed then
    remove_expired(record, now)
    store(key, record, now)
    notify_all(key, before, record, victims)
  end
  return answer
end
