-- One transition of one record: `apply` of rules/transitions.py, with the loading and storing around it.

local ENDED_KEPT = 100

-- The one predicate by which primitives differ: may one come in beside those who hold it?
local function mutex_admits(held)
  return #held == 0
end

local function rwlock_admits(held, mode)
  if #held == 0 then
    return true
  elseif mode ~= 'read' then
    return false
  end
  for _, other in ipairs(held) do
    if other == 'write' then
      return false
    end
  end
  return true
end

local function semaphore_admits(held, _, limit)
  return #held < limit
end

local ADMITS = { lock = mutex_admits, rwlock = rwlock_admits, semaphore = semaphore_admits }

-- What watchers want to hear of. Renewals and refreshes are no news: they come every second.
local function is_news(before, after)
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
    if waiter[NONCE] ~= after.queue[place][NONCE] then
      return true
    end
  end
  return false
end

-- Those whose turn has just come, those who watch, and those whose grant was taken away.
local function wake_all(key, before, after, victims)
  local had_turn = {}
  for _, waiter in ipairs(before.queue) do
    had_turn[waiter[NONCE]] = waiter[TURN_AT] and true
  end
  for _, waiter in ipairs(after.queue) do
    if not waiter[TURN_AT] then
      break
    elseif not had_turn[waiter[NONCE]] then
      wake(key, waiter[CLIENT], waiter[NONCE])
    end
  end
  if #after.watchers > 0 and is_news(before, after) then
    for _, watcher in ipairs(after.watchers) do
      wake(key, watcher[WATCHING], watcher[NONCE])
    end
  end
  for _, victim in ipairs(victims or {}) do
    if victim[CLIENT] ~= '' then
      wake(key, victim[CLIENT], victim[NONCE])
    end
  end
end

-- Without what is over, and no more of the ended than the newest.
local function tidied(record, now)
  local ended = record.ended
  if #ended > 0 then
    ended = filtered(ended, function(attempt) return attempt[FORGET_AT] > now end)
    while #ended > ENDED_KEPT do
      table.remove(ended, 1)
    end
  end
  local watchers = filtered(record.watchers, function(watcher) return watcher[WATCHES_UNTIL] > now end)
  return replaced(record, { ended = ended, watchers = watchers })
end

-- A handler gives back the record it was given where nothing needs to be stored: time alone changed it,
-- if anything did, and whoever looks next computes the same.
local function apply(key, value_key, handler, ask, asked_kind)
  local record = load(key)
  local admits = ADMITS[record.kind or asked_kind or 'lock']
  local settled = settle(record, now, admits)
  local after, answer, victims = handler(settled, ask, now, wall_us, admits, value_key)
  if after ~= settled then
    after = tidied(after, now)
    store(key, after, now)
    wake_all(key, record, after, victims)
  end
  return answer
end
