#!lua flags=allow-oom
-- Release. KEYS: the record. ARGV: owner, for how long an Acquire that has yet to arrive is to be refused. Any node
-- does it, also one that is not ready.
--@include rules/constants
--@include clock

-- It is the owner's, and there is nothing to remember: it is taken back without a closer look.
local raw = redis.call('GET', KEYS[1])
if raw then
  local is_read, _, schema, fence, over, owner, _, _, expires_at =
    pcall(cmsgpack.unpack_limit, raw, BEFORE_CLAIM + EXPIRES_AT)
  if is_read and schema == SCHEMA and over == false and owner == ARGV[1] and expires_at > now then
    redis.call('SET', KEYS[1], cmsgpack.pack(SCHEMA, fence, false, false), 'PX', RETENTION_MS)
    return 1
  end
end

--@include rules/record

local owner = ARGV[1]
local fence, claim, over = read(KEYS[1], raw)
claim = live_claim(claim, now)
if claim and claim[OWNER] == owner then
  store(KEYS[1], now, fence, false, over)
  return 1
end
local reply, linger = lost(over, claim, owner, now), tonumber(ARGV[2])
if linger > 0 then
  local ended = tombstone_of(over, owner, now) or { owner, 'withdrawn', '', 0 }
  if ended[FORGET_AT] < now + linger then
    ended[FORGET_AT] = now + linger
    over = live_tombstones(over, now, owner)
    over[#over + 1] = ended
    store(KEYS[1], now, fence, claim, over)
  end
end
return reply
