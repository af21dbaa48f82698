-- A wake-up goes to the channel of the client in the slot of the lock. A failure (a user without the right to
-- publish) changes nothing that was decided: whoever waits looks again by itself before long.
-- With a token, it says that the lock is there already, and how long its place had been there. Tells whether anybody
-- heard it.
local function notify(key, client, nonce, token, age)
  local prefix, tag = string.match(key, '^(holdfast:[^:]*:)'), string.match(key, '{[^}]+}')
  local message = token and nonce .. string.format('\n%.0f\n%.6f', token, age) or nonce
  local heard = redis.pcall('SPUBLISH', prefix .. 'wake:' .. tag .. ':' .. client, message)
  return type(heard) == 'number' and heard > 0
end
