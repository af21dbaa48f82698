-- How the queue moves: rules/queueing.py, function by function.

local function next_event_at(record)
  local soonest = nil
  for _, holder in ipairs(record.holders) do
    if not soonest or holder[EXPIRES_AT] < soonest then
      soonest = holder[EXPIRES_AT]
    end
  end
  for _, waiter in ipairs(record.queue) do
    local at = waiter[EXPIRES_AT]
    if waiter[TURN_AT] and waiter[TURN_AT] + TURN_SECONDS < at then
      at = waiter[TURN_AT] + TURN_SECONDS
    end
    if not soonest or at < soonest then
      soonest = at
    end
  end
  return soonest
end

-- The record with turns dealt: the longest front of the queue that can be admitted together.
local function turns(record, at, admits)
  if #record.queue == 0 then
    return record
  end
  local modes, queue, open_so_far, is_front = modes_of(record.holders), {}, true, true
  for index, waiter in ipairs(record.queue) do
    open_so_far = open_so_far and admits(modes, waiter[MODE], record.limit)
    if open_so_far then
      modes[#modes + 1] = waiter[MODE]
      waiter = waiter[TURN_AT] and waiter or with_fields(waiter, { [TURN_AT] = at })
    elseif is_front and waiter[TURN_AT] then
      waiter = with_fields(waiter, { [TURN_AT] = false })
    else
      -- Turns are a front of the queue: behind the first without one, nobody has one.
      is_front = false
    end
    queue[index] = waiter
  end
  return replaced(record, { queue = queue })
end

-- What happens at the moment `at`.
local function pass_event(record, at, admits)
  local late = {}
  for _, waiter in ipairs(record.queue) do
    if waiter[TURN_AT] and waiter[TURN_AT] + TURN_SECONDS <= at then
      late[waiter[CLIENT]] = true
    end
  end
  local holders = filtered(record.holders, function(holder) return holder[EXPIRES_AT] > at end)
  local queue = filtered(record.queue, function(waiter)
    return waiter[EXPIRES_AT] > at and not late[waiter[CLIENT]]
  end)
  return turns(replaced(record, { holders = holders, queue = queue }), at, admits)
end

-- The record as it stands at `now`: expired leases and missed turns are gone, turns are dealt.
local function settle(record, now, admits)
  local at = next_event_at(record)
  while at and at <= now do
    record = pass_event(record, at, admits)
    at = next_event_at(record)
  end
  return record
end

-- Whether one who is not in the queue may have it now: behind all who wait, unless it barges.
local function may_pass(record, mode, fair, admits)
  local modes = modes_of(record.holders)
  if fair then
    for _, waiter in ipairs(record.queue) do
      if not waiter[TURN_AT] then
        return false
      end
      modes[#modes + 1] = waiter[MODE]
    end
  end
  return admits(modes, mode, record.limit)
end

-- Seconds until the waiter at `place` should look again even if nobody wakes it.
local function look_in(record, place, now)
  local at = next_event_at(record)
  if not at or record.queue[place][TURN_AT] then
    return 0
  end
  local ahead = 0
  for index = 1, place - 1 do
    if not record.queue[index][TURN_AT] then
      ahead = ahead + 1
    end
  end
  return math.max(at - now, 0) + ahead * TURN_SECONDS
end

-- The clients whose end would move the waiter at `place`: the holders and the one before it.
local function blockers(record, place)
  local clients, seen = {}, { [''] = true }
  local function add(client)
    if not seen[client] then
      seen[client] = true
      clients[#clients + 1] = client
    end
  end
  for _, holder in ipairs(record.holders) do
    add(holder[CLIENT])
  end
  if place > 1 then
    add(record.queue[place - 1][CLIENT])
  end
  return clients
end

local function find_holder(record, nonce)
  for place, holder in ipairs(record.holders) do
    if holder[NONCE] == nonce then
      return holder, place
    end
  end
end

local function find_waiter(record, nonce)
  for place, waiter in ipairs(record.queue) do
    if waiter[NONCE] == nonce then
      return place
    end
  end
end

local function find_ended(record, nonce)
  for _, ended in ipairs(record.ended) do
    if ended[NONCE] == nonce then
      return ended
    end
  end
end
