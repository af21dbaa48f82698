#!lua
-- Stamp. KEYS: the record, the mark. ARGV: the expected mark, owner, number.
--@include rules/constants
--@include rules/ready
--@include clock
--@include rules/record

local owner, number = ARGV[2], tonumber(ARGV[3])
local fence, claim, tombstones = read(KEYS[1], redis.call('GET', KEYS[1]))
claim = live_claim(claim, now)
if not claim or claim[OWNER] ~= owner then
  return lost(tombstones, claim, owner, now)
end
if number <= fence or number >= MAX_TOKEN then
  return claim[NUMBER]
end
claim[NUMBER] = number
store(KEYS[1], now, number, claim, tombstones)
return number
