#!lua flags=allow-oom
-- Export. KEYS: the record, the mark. ARGV: what the mark must say, owner, the token that the adopter needs to know,
-- seal.
--@include rules/constants
--@include rules/ready
--@include clock
--@include rules/record

local owner = ARGV[2]
local fence, claim, over = read(KEYS[1], redis.call('GET', KEYS[1]))
claim = live_claim(claim, now)
if not claim or claim[OWNER] ~= owner then
  return lost(over, claim, owner, now)
end
claim[CLIENT], claim[TOKEN], claim[EXPIRES_AT] = '', tonumber(ARGV[3]), extended(claim, now + claim[TTL])
claim[LABEL] = ARGV[4]
store(KEYS[1], now, fence, claim, over)
return 1
