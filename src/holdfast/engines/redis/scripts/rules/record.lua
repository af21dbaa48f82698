-- What the server keeps about one name, and how it is written down: rules/record.py and engines/sqlite/codec.py.
--
-- A record is a string of MessagePack values: schema, shape, kind (false: none), limit, declared, token, and then
--   nothing                                                 if it is idle,
--   the fields of the holder                                if one holds it and there is nothing else to say,
--   holders, queue, deadlines, turns, ended, watchers       if it is full.
-- MessagePack has doubles and whole numbers below 2^53 exactly, which the server's JSON has not. Schema and shape
-- are the first two bytes. The value is under a key of its own: hot records stay small.
--
-- A queue can be long, and every look at the record reads it. So what never changes of a waiter is one string
-- (nonce, mode, client, owner, since, and for those who can be handed the lock their claim), read only when it is
-- needed; beside it there is the list of deadlines.
-- Turns are a front of the queue: the list of when they began is as long as that.
--
-- While a script works on it, a record is a table that changes. Its lists of holders, waiters and turns do not:
-- they are replaced, so that what was there before can be compared with what is there now.

-- Takes what reading the text as MessagePack gave; nil if that is no record.
local function record_of(is_read, _, shape, kind, limit, declared, token, ...)
  if not is_read or type(token) ~= 'number' then
    return nil
  end
  local holders, queue, deadlines, turns, ended, watchers = {}, {}, {}, {}, {}, {}
  if shape == HELD_BY_ONE then
    holders = { { ... } }
  elseif shape == FULL then
    holders, queue, deadlines, turns, ended, watchers = ...
  end
  return {
    kind = kind, limit = limit, declared = declared, token = token, holders = holders, queue = queue,
    deadlines = deadlines, turns = turns, ended = ended, watchers = watchers,
  }
end

local function decode_record(key, raw)
  if not raw then
    return record_of(true, SCHEMA, IDLE, false, 0, 0, 0)
  end
  local schema, record = string.byte(raw), nil
  if schema == SCHEMA then
    record = record_of(pcall(cmsgpack.unpack, raw))
  elseif schema and schema > SCHEMA and schema <= LARGEST_SCHEMA then
    error({ err = 'HOLDFAST holds a record of schema ' .. schema .. ', this version reads up to ' .. SCHEMA ..
      ': upgrade holdfast here' })
  end
  return record or error({ err = 'HOLDFAST holds something that is no record of Holdfast under the key ' .. key ..
    ': delete that key' })
end

-- It is kept for a day after the last thing in it has ended.
local function store(key, record, now)
  local kind, limit, declared, token = record.kind, record.limit, record.declared, record.token
  local holders, queue, ended, watchers = record.holders, record.queue, record.ended, record.watchers
  local last, text = now, nil
  for _, holder in ipairs(holders) do
    last = math.max(last, holder[EXPIRES_AT])
  end
  if #queue > 0 or #ended > 0 or #watchers > 0 or #holders > 1 then
    for _, deadline in ipairs(record.deadlines) do
      last = math.max(last, deadline)
    end
    for _, attempt in ipairs(ended) do
      last = math.max(last, attempt[FORGET_AT])
    end
    for _, watcher in ipairs(watchers) do
      last = math.max(last, watcher[WATCHES_UNTIL])
    end
    text = cmsgpack.pack(SCHEMA, FULL, kind, limit, declared, token, holders, queue, record.deadlines, record.turns,
      ended, watchers)
  elseif #holders == 1 then
    text = cmsgpack.pack(SCHEMA, HELD_BY_ONE, kind, limit, declared, token, unpack(holders[1]))
  else
    text = cmsgpack.pack(SCHEMA, IDLE, kind, limit, declared, token)
  end
  redis.call('SET', key, text, 'PX', math.ceil((last - now) * 1000) + RETENTION_MS)
end

-- Where in a list the row of an attempt is.
local function place_of(rows, nonce)
  for place, row in ipairs(rows) do
    if row[NONCE] == nonce then
      return place
    end
  end
end

-- A list with one row replaced, or added at its end.
local function with_row(rows, place, row)
  local copy = {}
  for index = 1, #rows do
    copy[index] = rows[index]
  end
  copy[place] = row
  return copy
end

-- A list without the rows of an attempt.
local function without(rows, nonce)
  local others = {}
  for _, row in ipairs(rows) do
    if row[NONCE] ~= nonce then
      others[#others + 1] = row
    end
  end
  return others
end

local function modes_of(rows)
  local modes = {}
  for index = 1, #rows do
    modes[index] = rows[index][MODE]
  end
  return modes
end

-- An expiry that respects max_hold.
local function capped(expires_at, until_)
  if not until_ or expires_at < until_ then
    return expires_at
  end
  return until_
end

-- A number in an answer, with all its digits; nothing for none.
local function exact(number)
  return number and struct.pack('>d', number) or ''
end

-- An answer with holders added to it.
local function with_holders(answer, holders)
  for _, holder in ipairs(holders) do
    answer[#answer + 1] = {
      holder[NONCE], holder[CLIENT], holder[OWNER], holder[MODE], exact(holder[SINCE]), exact(holder[EXPIRES_AT]),
      holder[TOKEN], exact(holder[TTL]), holder[RENEWS] and 1 or 0, exact(holder[UNTIL]), holder[METADATA],
    }
  end
  return answer
end
