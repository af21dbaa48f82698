#!lua
-- Acquire. KEYS: the record, the mark. ARGV: the expected mark, owner, hint, ttl, how long to keep the record in
-- milliseconds, the last fields of the claim (ttl to token, as in the record). With max_hold or for a break also:
-- max_hold, note, and the owners of the broken claims.
--@include rules/constants
--@include rules/ready
--@include clock

local hint = tonumber(ARGV[3])
if hint - now > HINT_SPAN or now - hint > HINT_SPAN then
  return { 'skewed', now }
end

-- Short path: no claim and no tombstone. The claim is granted without decoding the record.
local raw = redis.call('GET', KEYS[1])
local is_idle, last = not raw, 0
if raw and #raw <= IDLE_BYTES then
  local is_read, schema, fence, tombstones, owner = pcall(cmsgpack.unpack, raw)
  is_idle, last = is_read and schema == SCHEMA and tombstones == false and owner == false, fence
end
if is_idle and not ARGV[7] and (mark[2] == ARGV[4] or tonumber(ARGV[4]) <= (tonumber(mark[2]) or 0)) then
  local number = hint > last and hint or last + 1
  if number < MAX_TOKEN then
    local beginning = cmsgpack.pack(SCHEMA, number, false, ARGV[2], number, now, now + ARGV[4])
    redis.call('SET', KEYS[1], beginning .. ARGV[6], 'PX', ARGV[5])
    return number
  end
end

--@include rules/record

local owner, max_hold = ARGV[2], tonumber(ARGV[7] or 0)
local fence, claim, tombstones = read(KEYS[1], raw)
claim = live_claim(claim, now)
local ended = tombstone_of(tombstones, owner, now)
if ended then
  if ended[REASON] == 'withdrawn' then
    local others = {}
    for _, each in ipairs(tombstones) do
      if each ~= ended then
        others[#others + 1] = each
      end
    end
    store(KEYS[1], now, fence, claim, others)
  end
  return { 'lost', ended[REASON], ended[NOTE] }
end
if claim then
  if claim[OWNER] == owner then
    return claim[NUMBER]
  end
  local is_meant = false
  for place = 9, #ARGV do
    is_meant = is_meant or ARGV[place] == claim[OWNER]
  end
  if not is_meant then
    return { 'taken', now, claim }
  end
end
local number = math.max(fence + 1, hint)
if number >= MAX_TOKEN then
  return { 'spent' }
end
local ttl, _, client, label, metadata, token = cmsgpack.unpack(ARGV[6])
if ARGV[9] then
  tombstones = live_tombstones(tombstones, now)
  for place = 9, #ARGV do
    if not tombstone_of(tombstones, ARGV[place], now) then
      local lasts = claim and claim[OWNER] == ARGV[place] and claim[TTL] or ttl
      tombstones[#tombstones + 1] = { ARGV[place], 'broken', ARGV[8], now + lasts + BROKEN_KEPT }
    end
  end
  while #tombstones > TOMBSTONES_MAX do
    table.remove(tombstones, 1)
  end
end
local until_ = max_hold > 0 and now + max_hold or 0
note_longest(ttl, mark[2])
store(KEYS[1], now, number,
  { owner, number, now, capped(now + ttl, until_), ttl, until_, client, label, metadata, token }, tombstones)
return number
