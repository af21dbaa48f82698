#!lua flags=no-writes
-- Inspect. KEYS: the record, the mark. ARGV: the expected mark.
--@include rules/constants
--@include rules/ready
--@include clock
--@include rules/record

local fence, claim, tombstones = read(KEYS[1], redis.call('GET', KEYS[1]))
return { 'view', now, fence, live_claim(claim, now) or '', tombstones }
