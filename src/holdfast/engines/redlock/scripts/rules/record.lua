-- The record of a name on one node: rules/node/values.py.
--
-- A record is a string of MessagePack values: schema, fence, tombstones (false: none), and the fields of the claim one
-- by one (a single false: none), so that a script can decode only the first of them. A tombstone is a list;
-- constants.lua has the order of its fields. All numbers are whole and below 2^53, and so exact.

local function read(key, raw)
  if not raw then
    return 0, false, {}
  end
  local values = { pcall(cmsgpack.unpack, raw) }
  local is_read, schema, fence, tombstones = values[1], values[2], values[3], values[4]
  if is_read and type(schema) == 'number' and schema > SCHEMA and schema <= LARGEST_SCHEMA then
    error({ err = 'HOLDFAST holds a record of schema ' .. schema .. ', this version reads up to ' .. SCHEMA ..
      ': upgrade holdfast here' })
  end
  if not is_read or schema ~= SCHEMA or type(fence) ~= 'number' then
    error({ err = 'HOLDFAST holds something that is no record of Holdfast under the key ' .. key ..
      ': delete that key' })
  end
  return fence, values[5] and { unpack(values, 5) }, tombstones or {}
end

-- The record is kept for a day after the claim and all tombstones have ended.
local function store(key, now, fence, claim, tombstones)
  local last = claim and claim[EXPIRES_AT] or now
  for _, ended in ipairs(tombstones) do
    last = math.max(last, ended[FORGET_AT])
  end
  local lives = math.ceil(math.max(last - now, 0) / 1000) + RETENTION_MS
  local text = cmsgpack.pack(SCHEMA, fence, #tombstones > 0 and tombstones, unpack(claim or { false }))
  redis.call('SET', key, text, 'PX', string.format('%.0f', lives))
end

-- The expiry of a claim is computed, not stored.
local function live_claim(claim, now)
  return claim and claim[EXPIRES_AT] > now and claim
end

local function capped(expires_at, until_)
  return until_ > 0 and math.min(expires_at, until_) or expires_at
end

-- The expiry only moves forward, and not beyond max_hold.
local function extended(claim, expires_at)
  return math.max(claim[EXPIRES_AT], capped(expires_at, claim[UNTIL]))
end

local function tombstone_of(tombstones, owner, now)
  for _, ended in ipairs(tombstones) do
    if ended[OWNER] == owner and ended[FORGET_AT] > now then
      return ended
    end
  end
end

local function lost(tombstones, claim, owner, now)
  local ended = tombstone_of(tombstones, owner, now)
  if ended then
    return { 'lost', ended[REASON], ended[NOTE] }
  end
  return { 'lost', claim and 'stolen' or 'expired', '' }
end

-- Leaves room for one more.
local function live_tombstones(tombstones, now, except)
  local kept = {}
  for _, ended in ipairs(tombstones) do
    if ended[FORGET_AT] > now and ended[OWNER] ~= except then
      kept[#kept + 1] = ended
    end
  end
  while #kept >= TOMBSTONES_MAX do
    table.remove(kept, 1)
  end
  return kept
end

-- A node that lost its data waits for longer than the longest ttl that was ever requested.
local function note_longest(ttl, longest)
  if ttl > (tonumber(longest) or 0) then
    redis.call('HSET', KEYS[2], 'longest', string.format('%.0f', ttl))
  end
end
