#!lua flags=allow-oom
-- Release. KEYS: the record. ARGV: owner, for how long an Acquire that may still arrive is refused. A node
-- need not be ready for it.
--@include rules/constants
--@include clock

-- Short path: the claim of the owner, and no tombstone.
local raw = redis.call('GET', KEYS[1])
if raw then
  local is_read, _, schema, fence, tombstones, owner, _, _, expires_at =
    pcall(cmsgpack.unpack_limit, raw, BEFORE_CLAIM + EXPIRES_AT)
  if is_read and schema == SCHEMA and tombstones == false and owner == ARGV[1] and expires_at > now then
    redis.call('SET', KEYS[1], cmsgpack.pack(SCHEMA, fence, false, false), 'PX', RETENTION_MS)
    return 1
  end
end

--@include rules/record

local owner = ARGV[1]
local fence, claim, tombstones = read(KEYS[1], raw)
claim = live_claim(claim, now)
if claim and claim[OWNER] == owner then
  store(KEYS[1], now, fence, false, tombstones)
  return 1
end
local reply, linger = lost(tombstones, claim, owner, now), tonumber(ARGV[2])
if linger > 0 then
  local ended = tombstone_of(tombstones, owner, now) or { owner, 'withdrawn', '', 0 }
  if ended[FORGET_AT] < now + linger then
    ended[FORGET_AT] = now + linger
    tombstones = live_tombstones(tombstones, now, owner)
    tombstones[#tombstones + 1] = ended
    store(KEYS[1], now, fence, claim, tombstones)
  end
end
return reply
