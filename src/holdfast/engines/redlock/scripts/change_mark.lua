#!lua
-- Prime, Start, Trust, Rejoin, Admit: a comparison and a change of the mark. KEYS: any, the mark. ARGV: the expected
-- mark, which ends with the run id of the server; the request; the new mark; the old mark; longest.
local what, wanted, was = ARGV[2], ARGV[3], ARGV[4]
local mark = redis.call('HMGET', KEYS[2], 'ready', 'primed', 'rejoins', 'longest')
local ready, primed, rejoins, longest = mark[1] or '', mark[2] or '', mark[3] or '', tonumber(mark[4]) or 0

if string.match(wanted, '[^/]*$') == string.match(ARGV[1], '[^/]*$') then
  if what == 'prime' then
    if ready == '' and primed == was then
      primed = wanted
    end
  elseif what == 'start' then
    if ready == '' and primed == wanted then
      ready = wanted
    end
  elseif what == 'trust' then
    if ready == was then
      ready = wanted
    end
  elseif what == 'rejoin' then
    rejoins = wanted
  elseif rejoins == wanted then
    ready, primed, rejoins, longest = wanted, wanted, '', math.max(longest, tonumber(ARGV[5]))
  end
  redis.call('HSET', KEYS[2], 'ready', ready, 'primed', primed, 'rejoins', rejoins,
    'longest', string.format('%.0f', longest))
end
return { 'marked', ready, primed, rejoins, longest }
