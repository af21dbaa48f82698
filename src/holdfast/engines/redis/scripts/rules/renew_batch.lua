-- Several renewals and refreshes of one record as one transition. The result is as if they came one after the other at
-- the same moment, the renewals first, except that the positions of waiters are computed after all refreshes. A
-- thousand waiters of one client on one lock then read the queue once, not a thousand times.

-- Each ask: step, ttl (nil: a refresh), nonce. The answers go to their steps.
local function refresh_all(record, asks, now, is_changed)
  local place_of_waiter, waiting = {}, {}
  for place, waiter in ipairs(record.queue) do
    local nonce = cmsgpack.unpack(waiter)
    place_of_waiter[nonce] = place
  end
  for _, ask in ipairs(asks) do
    local place, watches = place_of_waiter[ask.nonce], place_of(record.watchers, ask.nonce)
    if place then
      record.deadlines[place] = now + PATIENCE_SECONDS
      waiting[#waiting + 1] = { step = ask.step, place = place }
      is_changed = true
    elseif watches and record.watchers[watches][WATCHES_UNTIL] > now then
      local watcher = { ask.nonce, record.watchers[watches][WATCHING], now + PATIENCE_SECONDS }
      record.watchers = with_row(record.watchers, watches, watcher)
      answers[ask.step] = DONE
      is_changed = true
    else
      answers[ask.step] = { 'absent' }
    end
  end
  local at = next_event_at(record)
  for _, waiter in ipairs(waiting) do
    answers[waiter.step] = queued(record, waiter.place, at, now)
  end
  return is_changed
end

local function renew_all(record, asks, now)
  local refreshes, is_changed = {}, false
  for _, ask in ipairs(asks) do
    if ask.ttl then
      local answer, is_renewed = renew(record, { ask.ttl, ask.nonce }, now)
      answers[ask.step], is_changed = answer, is_changed or is_renewed
    else
      refreshes[#refreshes + 1] = ask
    end
  end
  if #refreshes > 0 then
    is_changed = refresh_all(record, refreshes, now, is_changed)
  end
  return nil, is_changed
end

-- A record that cannot be decoded must not stop the renewal of the others. Its lease is lost.
local function answer_unreadable(asks, problem)
  local note = string.gsub(problem, '^HOLDFAST', 'Redis')
  for _, ask in ipairs(asks) do
    answers[ask.step] = ask.ttl and { 'gone', 'stolen', note } or { 'absent' }
  end
end

local keys, asks_of = {}, {}
for _, step in ipairs(rest) do
  local key = KEYS[step]
  if not asks_of[key] then
    keys[#keys + 1], asks_of[key] = key, {}
  end
  table.insert(asks_of[key], { step = step, ttl = tonumber(ARGV[2 * step - 1]), nonce = ARGV[2 * step] })
end
for _, key in ipairs(keys) do
  local raw = redis.pcall('GET', key)
  local is_readable, problem = type(raw) ~= 'table', raw
  if is_readable then
    is_readable, problem = pcall(decode_record, key, raw)
  end
  if is_readable then
    apply(renew_all, asks_of[key], key, raw)
  else
    answer_unreadable(asks_of[key], problem.err or tostring(problem))
  end
end
