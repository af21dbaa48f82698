-- What the server keeps about one name, and how it is written down: rules/record.py and rules/codec.py.
--
-- A record is a string of MessagePack values: schema, kind (false: none), limit, declared, token, and then
--   nothing                                  if it is idle,
--   the fields of the holder                 if one holds it and there is nothing else to say,
--   holders, queue, ended, watchers          otherwise.
-- MessagePack has doubles and whole numbers below 2^53 exactly, which the server's JSON has not.
-- The schema is the first byte, as long as it is a small number. The value is under a key of its own, so that
-- hot records stay small.

local SCHEMA = 1
local LARGEST_SCHEMA = 31
local TURN_SECONDS = 2.0
local PATIENCE_SECONDS = 5.0
local RETENTION_MS = 86400000
local MAX_TOKEN = 9007199254740992

-- Fields of holders and waiters. None is false: a list must not have holes.
local NONCE, SINCE, EXPIRES_AT, TOKEN, CLIENT, OWNER, MODE = 1, 2, 3, 4, 5, 6, 7
local TTL, RENEWS, UNTIL, METADATA = 8, 9, 10, 11
local TURN_AT = 4
-- Fields of attempts that were ended, and of watchers; the first is the nonce.
local REASON, NOTE, FORGET_AT = 2, 3, 4
local WATCHING, WATCHES_UNTIL = 2, 3

local function replaced(record, changes)
  local copy = {
    kind = record.kind, limit = record.limit, declared = record.declared, token = record.token,
    holders = record.holders, queue = record.queue, ended = record.ended, watchers = record.watchers,
    value_is_new = record.value_is_new,
  }
  for field, value in pairs(changes) do
    copy[field] = value
  end
  return copy
end

local function with_fields(row, changes)
  local copy = {}
  for field = 1, #row do
    copy[field] = row[field]
  end
  for field, value in pairs(changes) do
    copy[field] = value
  end
  return copy
end

local function filtered(rows, is_kept)
  local kept = {}
  for _, row in ipairs(rows) do
    if is_kept(row) then
      kept[#kept + 1] = row
    end
  end
  return kept
end

local function with_place(rows, place, row)
  local copy = {}
  for index = 1, #rows do
    copy[index] = rows[index]
  end
  copy[place] = row
  return copy
end

local function without_place(rows, place)
  local copy = {}
  for index = 1, #rows do
    if index ~= place then
      copy[#copy + 1] = rows[index]
    end
  end
  return copy
end

local function modes_of(rows)
  local modes = {}
  for index = 1, #rows do
    modes[index] = rows[index][MODE]
  end
  return modes
end

local function capped(expires_at, until_)
  if not until_ or expires_at < until_ then
    return expires_at
  end
  return until_
end

local function fields_of(kind, limit, declared, token, first, queue, ended, watchers, ...)
  local holders = first
  if not first then
    holders = {}
  elseif type(first) ~= 'table' then
    holders, queue, ended, watchers = { { first, queue, ended, watchers, ... } }, nil, nil, nil
  end
  return {
    kind = kind, limit = limit, declared = declared, token = token,
    holders = holders, queue = queue or {}, ended = ended or {}, watchers = watchers or {},
  }
end

local function decode(key, raw)
  if not raw then
    return fields_of(false, 0, 0, 0)
  end
  local schema = string.byte(raw)
  if schema == SCHEMA then
    local fields = { pcall(cmsgpack.unpack, raw) }
    if fields[1] and type(fields[6]) == 'number' then
      return fields_of(unpack(fields, 3))
    end
  elseif schema and schema > SCHEMA and schema <= LARGEST_SCHEMA then
    error({ err = 'HOLDFAST holds a record of schema ' .. schema .. ', this version reads up to ' .. SCHEMA ..
      ': upgrade holdfast here' })
  end
  error({ err = 'HOLDFAST holds something that is no record of Holdfast under the key ' .. key ..
    ': delete that key' })
end

local function encode(record)
  local kind, limit, declared, token = record.kind, record.limit, record.declared, record.token
  local holders, queue, ended, watchers = record.holders, record.queue, record.ended, record.watchers
  if #queue > 0 or #ended > 0 or #watchers > 0 or #holders > 1 then
    return cmsgpack.pack(SCHEMA, kind, limit, declared, token, holders, queue, ended, watchers)
  elseif holders[1] then
    return cmsgpack.pack(SCHEMA, kind, limit, declared, token, unpack(holders[1]))
  end
  return cmsgpack.pack(SCHEMA, kind, limit, declared, token)
end

-- When nothing in it is in force any more.
local function ends_at(record, now)
  local last = now
  for _, holder in ipairs(record.holders) do
    last = math.max(last, holder[EXPIRES_AT])
  end
  for _, waiter in ipairs(record.queue) do
    last = math.max(last, waiter[EXPIRES_AT])
  end
  for _, ended in ipairs(record.ended) do
    last = math.max(last, ended[FORGET_AT])
  end
  for _, watcher in ipairs(record.watchers) do
    last = math.max(last, watcher[WATCHES_UNTIL])
  end
  return last
end

local function load(key)
  return decode(key, redis.call('GET', key))
end

local function store(key, record, now)
  local lives_ms = math.ceil((ends_at(record, now) - now) * 1000) + RETENTION_MS
  redis.call('SET', key, encode(record), 'PX', string.format('%.0f', lives_ms))
end

-- Numbers with a fraction as they stand, in an answer.
local function exact(number)
  return number and string.format('%.17g', number) or ''
end

local function told_holder(holder)
  return {
    holder[NONCE], holder[CLIENT], holder[OWNER], holder[MODE], exact(holder[SINCE]), exact(holder[EXPIRES_AT]),
    holder[TOKEN], exact(holder[TTL]), holder[RENEWS] and 1 or 0, exact(holder[UNTIL]), holder[METADATA],
  }
end

local function with_holders(answer, holders)
  for _, holder in ipairs(holders) do
    answer[#answer + 1] = told_holder(holder)
  end
  return answer
end
