#!lua flags=allow-oom
-- Export. KEYS: the record, the mark. ARGV: the expected mark, owner, the token for the adopter, seal.
--@include rules/constants
--@include rules/ready
--@include clock
--@include rules/record

local owner = ARGV[2]
local fence, claim, tombstones = read(KEYS[1], redis.call('GET', KEYS[1]))
claim = live_claim(claim, now)
if not claim or claim[OWNER] ~= owner then
  return lost(tombstones, claim, owner, now)
end
claim[CLIENT], claim[TOKEN], claim[EXPIRES_AT] = '', tonumber(ARGV[3]), extended(claim, now + claim[TTL])
claim[LABEL] = ARGV[4]
store(KEYS[1], now, fence, claim, tombstones)
return 1
