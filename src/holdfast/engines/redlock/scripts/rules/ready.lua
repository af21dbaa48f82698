-- Only a node with the expected mark issues numbers, or answers with any.
local mark = redis.call('HMGET', KEYS[2], 'ready', 'longest')
if mark[1] ~= ARGV[1] then
  return { 'unready', mark[1] or '' }
end
