-- The record of a name and its encoding: rules/record.py and engines/sqlite/codec.py.
--
-- A record is a string of MessagePack values: schema, shape, kind (false: none), limit, declared, token, and then
--   nothing                                                 if it is idle,
--   the fields of the holder                                if there is one holder and nothing else,
--   holders, queue, deadlines, turns, ended, watchers       if it is full.
-- MessagePack is exact for doubles and whole numbers below 2^53, which the server's JSON is not. Schema and shape are
-- the first two bytes. The value has a key of its own: hot records stay small.
--
-- A queue can be long, and every script that decodes the record decodes the queue. So the constant fields of a waiter
-- are one string (nonce, mode, client, owner, since and, where a release can hand the lock over, the claim), which is
-- decoded only when it is needed. The deadlines are a list of their own. The first waiters of the queue have turns: the
-- list of turns has the time of each.
--
-- A script changes the table of the record, but not its lists of holders, waiters and turns: it replaces them, so that
-- the lists before and after can be compared.

-- The record from the decoded MessagePack values; nil: they are no record.
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

-- The record is kept for a day after everything in it has ended.
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

-- The place of an attempt in a list.
local function place_of(rows, nonce)
  for place, row in ipairs(rows) do
    if row[NONCE] == nonce then
      return place
    end
  end
end

-- A copy of a list with one row replaced, or added at its end.
local function with_row(rows, place, row)
  local copy = {}
  for index = 1, #rows do
    copy[index] = rows[index]
  end
  copy[place] = row
  return copy
end

-- A copy of a list without the rows of an attempt.
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

-- A number in an answer, exactly; empty for none.
local function exact(number)
  return number and struct.pack('>d', number) or ''
end

-- An answer with the holders appended.
local function with_holders(answer, holders)
  for _, holder in ipairs(holders) do
    answer[#answer + 1] = {
      holder[NONCE], holder[CLIENT], holder[OWNER], holder[MODE], exact(holder[SINCE]), exact(holder[EXPIRES_AT]),
      holder[TOKEN], exact(holder[TTL]), holder[RENEWS] and 1 or 0, exact(holder[UNTIL]), holder[METADATA],
    }
  end
  return answer
end
