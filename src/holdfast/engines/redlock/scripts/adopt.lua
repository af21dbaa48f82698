#!lua flags=allow-oom
-- Adopt. KEYS: the record, the mark. ARGV: the expected mark, owner, client, label, seal.
--@include rules/constants
--@include rules/ready
--@include clock
--@include rules/record

local owner, client = ARGV[2], ARGV[3]
local fence, claim, tombstones = read(KEYS[1], redis.call('GET', KEYS[1]))
claim = live_claim(claim, now)
if not claim or claim[OWNER] ~= owner then
  return lost(tombstones, claim, owner, now)
end
if claim[CLIENT] ~= client and (claim[CLIENT] ~= '' or claim[LABEL] ~= ARGV[5]) then
  return { 'lost', 'stolen', NOT_EXPORTED }
end
claim[CLIENT], claim[LABEL], claim[EXPIRES_AT] = client, ARGV[4], extended(claim, now + claim[TTL])
store(KEYS[1], now, fence, claim, tombstones)
return 1
