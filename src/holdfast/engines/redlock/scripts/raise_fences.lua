#!lua
-- Raise. KEYS: records. ARGV: for each the number that some node has issued already.
--@include rules/constants
--@include clock
--@include rules/record

for place, key in ipairs(KEYS) do
  local fence, claim, tombstones = read(key, redis.call('GET', key))
  if tonumber(ARGV[place]) > fence then
    store(key, now, tonumber(ARGV[place]), claim, tombstones)
  end
end
return 1
