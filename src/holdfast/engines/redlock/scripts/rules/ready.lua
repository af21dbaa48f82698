-- Only a node whose mark says what the asker takes it to say issues numbers, or tells of any.
local mark = redis.call('HMGET', KEYS[2], 'ready', 'longest')
if mark[1] ~= ARGV[1] then
  return { 'unready', mark[1] or '' }
end
