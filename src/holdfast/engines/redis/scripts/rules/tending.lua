-- Several renewals and refreshes of one record as one transition: as if they came one after the other at the
-- same moment, but that a waiter is told where it stands once all have been refreshed. A thousand waiters of one
-- client on one lock are then one look at the queue, not a thousand.

-- Each ask: step, ttl (nil: a refresh), nonce. The answers go to their steps. Whether the record was changed
-- before this decides whether it is the same record that is given back.
local function refreshed(record, asks, now, is_changed)
  local queue, watchers = filtered(record.queue, function() return true end), record.watchers
  local place_of, waiting = {}, {}
  for place, waiter in ipairs(queue) do
    place_of[waiter[NONCE]] = place
  end
  for _, ask in ipairs(asks) do
    local place = place_of[ask.nonce]
    if place then
      queue[place] = with_fields(queue[place], { [EXPIRES_AT] = now + PATIENCE_SECONDS })
      waiting[#waiting + 1] = { step = ask.step, place = place }
      is_changed = true
    else
      answers[ask.step] = { 'absent' }
      for index, watcher in ipairs(watchers) do
        -- With the first change those are forgotten who had stopped watching.
        if watcher[NONCE] == ask.nonce and (watcher[WATCHES_UNTIL] > now or not is_changed) then
          local watches = with_fields(watcher, { [WATCHES_UNTIL] = now + PATIENCE_SECONDS })
          watchers = with_place(watchers, index, watches)
          answers[ask.step] = DONE
          is_changed = true
        end
      end
    end
  end
  if is_changed then
    record = replaced(record, { queue = queue, watchers = watchers })
  end
  return record, waiting
end

local function tell_waiters(record, waiting, now)
  local at, before = next_event_at(record), 0
  while record.queue[before + 1] and record.queue[before + 1][TURN_AT] do
    before = before + 1
  end
  for _, waiter in ipairs(waiting) do
    local place = waiter.place
    local seconds = place <= before and 0 or math.max(at - now, 0) + (place - 1 - before) * TURN_SECONDS
    answers[waiter.step] = { 'queued', place - 1, exact(seconds), unpack(blockers(record, place)) }
  end
end

local function tend(record, asks, now)
  local after, refreshes, waiting = record, {}, nil
  for _, ask in ipairs(asks) do
    if ask.ttl then
      after, answers[ask.step] = renew(after, { ask.ttl, ask.nonce }, now)
    else
      refreshes[#refreshes + 1] = ask
    end
  end
  if #refreshes > 0 then
    after, waiting = refreshed(after, refreshes, now, after ~= record)
    tell_waiters(after, waiting, now)
  end
  return after, answers
end

-- A record that cannot be read must not keep the others from being renewed. What was held there is lost.
local function tell_unreadable(asks, problem)
  for _, ask in ipairs(asks) do
    answers[ask.step] = ask.ttl and { 'gone', 'stolen', 'Redis ' .. problem } or { 'absent' }
  end
end

local keys, asks_of = {}, {}
for _, step in ipairs(rest) do
  local key = KEYS[step]
  if not asks_of[key] then
    keys[#keys + 1], asks_of[key] = key, {}
  end
  local ask = { step = step, ttl = tonumber(ARGV[2 * step - 1]), nonce = ARGV[2 * step] }
  table.insert(asks_of[key], ask)
end
for _, key in ipairs(keys) do
  local is_readable, problem = pcall(load, key)
  if is_readable then
    apply(key, nil, tend, asks_of[key])
  else
    problem = type(problem) == 'table' and problem.err or tostring(problem)
    tell_unreadable(asks_of[key], string.gsub(problem, '^HOLDFAST ', ''))
  end
end
