-- The queue: rules/queueing.py, function by function.

-- The one predicate by which primitives differ: may this mode join the current holders?
local function admits(record, held, mode)
  if record.kind == 'semaphore' then
    return #held < record.limit
  elseif #held == 0 then
    return true
  elseif record.kind ~= 'rwlock' or mode ~= 'read' then
    return false
  end
  for _, other in ipairs(held) do
    if other == 'write' then
      return false
    end
  end
  return true
end

-- The place of an attempt in the queue. The string of a waiter begins with its nonce, length included.
local function waits_at(record, nonce)
  local beginning = cmsgpack.pack(nonce)
  local size = #beginning
  for place, waiter in ipairs(record.queue) do
    if string.sub(waiter, 1, size) == beginning then
      return place
    end
  end
end

local function client_of(waiter)
  local _, _, client = cmsgpack.unpack(waiter)
  return client
end

-- When time alone changes this record next; nil: never.
local function next_event_at(record)
  local soonest = nil
  for _, holder in ipairs(record.holders) do
    if not soonest or holder[EXPIRES_AT] < soonest then
      soonest = holder[EXPIRES_AT]
    end
  end
  for _, deadline in ipairs(record.deadlines) do
    if not soonest or deadline < soonest then
      soonest = deadline
    end
  end
  for _, turn_at in ipairs(record.turns) do
    if turn_at + TURN_SECONDS < soonest then
      soonest = turn_at + TURN_SECONDS
    end
  end
  return soonest
end

-- Deals turns to the longest front of the queue that can be admitted together.
local function deal_turns(record, at)
  if #record.queue == 0 then
    return
  end
  local modes, turns = modes_of(record.holders), {}
  for place, waiter in ipairs(record.queue) do
    local _, mode = cmsgpack.unpack(waiter)
    if not admits(record, modes, mode) then
      break
    end
    modes[#modes + 1] = mode
    turns[place] = record.turns[place] or at
  end
  record.turns = turns
end

-- Keeps the waiters for which `stays(place, waiter)` is true.
local function keep_waiters(record, stays)
  local queue, deadlines, turns = {}, {}, {}
  for place, waiter in ipairs(record.queue) do
    if stays(place, waiter) then
      queue[#queue + 1], deadlines[#deadlines + 1] = waiter, record.deadlines[place]
      turns[#turns + 1] = record.turns[place]
    end
  end
  record.queue, record.deadlines, record.turns = queue, deadlines, turns
end

-- The event at the moment `at`. A missed turn drops all entries of that client.
local function pass_event(record, at)
  local late, is_any_late, holders = {}, false, {}
  for place, turn_at in ipairs(record.turns) do
    if turn_at + TURN_SECONDS <= at then
      late[client_of(record.queue[place])] = true
      is_any_late = true
    end
  end
  for _, holder in ipairs(record.holders) do
    if holder[EXPIRES_AT] > at then
      holders[#holders + 1] = holder
    end
  end
  record.holders = holders
  keep_waiters(record, function(place, waiter)
    return record.deadlines[place] > at and not (is_any_late and late[client_of(waiter)])
  end)
  deal_turns(record, at)
end

-- The record at `now`: expired leases and missed turns are removed, and turns are dealt.
local function settle(record, now)
  local at = next_event_at(record)
  while at and at <= now do
    pass_event(record, at)
    at = next_event_at(record)
  end
end

-- Whether an attempt outside the queue may have the lock now: after all waiters, unless it barges.
local function may_pass(record, mode, fair)
  local modes = modes_of(record.holders)
  if fair then
    if #record.turns < #record.queue then
      return false
    end
    for _, waiter in ipairs(record.queue) do
      local _, wanted = cmsgpack.unpack(waiter)
      modes[#modes + 1] = wanted
    end
  end
  return admits(record, modes, mode)
end

-- Seconds until the waiter at `place` polls, if it gets no notification; `at` is the next event.
local function poll_after(record, place, at, now)
  if record.turns[place] then
    return 0
  end
  return math.max(at - now, 0) + (place - 1 - #record.turns) * TURN_SECONDS
end

-- The position of the waiter at `place`, and the clients that block it: the holders and the waiter before it.
local function queued(record, place, at, now)
  local answer, seen = { 'queued', place - 1, exact(poll_after(record, place, at, now)) }, { [''] = true }
  for _, holder in ipairs(record.holders) do
    if not seen[holder[CLIENT]] then
      seen[holder[CLIENT]] = true
      answer[#answer + 1] = holder[CLIENT]
    end
  end
  local before = place > 1 and client_of(record.queue[place - 1])
  if before and not seen[before] then
    answer[#answer + 1] = before
  end
  return answer
end
