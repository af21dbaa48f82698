#!lua flags=allow-oom
-- Renew. KEYS: the record, the mark. ARGV: the expected mark, owner, ttl.
--@include rules/constants
--@include rules/ready
--@include clock
--@include rules/record

local owner, ttl = ARGV[2], tonumber(ARGV[3])
local fence, claim, tombstones = read(KEYS[1], redis.call('GET', KEYS[1]))
claim = live_claim(claim, now)
if not claim or claim[OWNER] ~= owner then
  return lost(tombstones, claim, owner, now)
end
claim[TTL], claim[EXPIRES_AT] = ttl, extended(claim, now + ttl)
note_longest(ttl, mark[2])
store(KEYS[1], now, fence, claim, tombstones)
return 1
