#!lua
-- Acquire. KEYS: the record, the mark. ARGV: what the mark must say, owner, hint, ttl, max_hold, client, label,
-- metadata, note, and the owners from whom it is taken away.
--@include rules/constants
--@include rules/ready
--@include clock

local owner, hint, ttl = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if hint - now > HINT_SPAN or now - hint > HINT_SPAN then
  return { 'skewed', now }
end

-- Nobody has it and there is nothing to remember: it is given away without a closer look.
local raw = redis.call('GET', KEYS[1])
local is_idle, last = not raw, 0
if raw and #raw <= IDLE_BYTES then
  local is_read, schema, fence, claim, over = pcall(cmsgpack.unpack, raw)
  is_idle, last = is_read and schema == SCHEMA and claim == false and over == false, fence
end
if is_idle and ARGV[5] == '0' and (mark[2] == ARGV[4] or ttl <= (tonumber(mark[2]) or 0)) then
  local number = hint > last and hint or last + 1
  if number < MAX_TOKEN then
    local claim = { owner, number, now, now + ttl, ttl, 0, ARGV[6], ARGV[7], ARGV[8], 0 }
    local lives = string.format('%d', math.ceil(ttl / 1000) + RETENTION_MS)
    redis.call('SET', KEYS[1], cmsgpack.pack(SCHEMA, number, claim, false), 'PX', lives)
    return number
  end
end

--@include rules/record

local fence, claim, over = read(KEYS[1], raw)
claim = settled(claim, now)
local ended = ended_of(over, owner, now)
if ended then
  if ended[REASON] == 'withdrawn' then
    local others = {}
    for _, each in ipairs(over) do
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
  for place = 10, #ARGV do
    is_meant = is_meant or ARGV[place] == claim[OWNER]
  end
  if not is_meant then
    return { 'taken', now, claim }
  end
  over = remembered(over, now)
  over[#over + 1] = { claim[OWNER], 'broken', ARGV[9], now + claim[TTL] + BROKEN_KEPT }
end
local number = math.max(fence + 1, hint)
if number >= MAX_TOKEN then
  return { 'spent' }
end
local max_hold = tonumber(ARGV[5])
local until_ = max_hold > 0 and now + max_hold or 0
note_longest(ttl, mark[2])
store(KEYS[1], now, number,
  { owner, number, now, capped(now + ttl, until_), ttl, until_, ARGV[6], ARGV[7], ARGV[8], 0 }, over)
return number
