#!lua flags=no-writes
-- Look. KEYS: the record, the mark. ARGV: what the mark must say.
--@include rules/constants
--@include rules/ready
--@include clock
--@include rules/record

local fence, claim, over = read(KEYS[1], redis.call('GET', KEYS[1]))
return { 'view', now, fence, live_claim(claim, now) or '', over }
