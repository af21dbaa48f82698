#!lua flags=no-writes
-- List, Fences: a page of the records whose keys match a pattern. KEYS: any, the mark. ARGV: the expected mark,
-- pattern, cursor, how many keys to scan.
--@include rules/constants
--@include rules/ready
--@include clock
--@include rules/record

local scanned = redis.call('SCAN', ARGV[3], 'MATCH', ARGV[2], 'COUNT', ARGV[4])
local found = {}
for _, key in ipairs(scanned[2]) do
  local fence, claim, tombstones = read(key, redis.call('GET', key))
  found[#found + 1] = { key, fence, live_claim(claim, now) or '', tombstones }
end
return { 'page', now, scanned[1], found }
