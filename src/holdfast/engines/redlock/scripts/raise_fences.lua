#!lua
-- Raise. KEYS: records. ARGV: the number for each that was issued already, somewhere.
--@include rules/constants
--@include clock
--@include rules/record

for place, key in ipairs(KEYS) do
  local fence, claim, over = read(key, redis.call('GET', key))
  if tonumber(ARGV[place]) > fence then
    store(key, now, tonumber(ARGV[place]), claim, over)
  end
end
return 1
