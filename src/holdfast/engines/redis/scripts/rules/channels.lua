-- A wake-up goes to the channel of the client. A failure (a user without the right to publish) changes
-- nothing that was decided: whoever waits looks again by itself before long.
-- With a token, it says that the lock is there already, and how long its place had been there. Tells whether anybody
-- heard it.
local function notify(key, client, nonce, token, age)
  local message = token and nonce .. string.format('\n%.0f\n%.6f', token, age) or nonce
  local heard = redis.pcall('PUBLISH', string.match(key, '^holdfast:[^:]*:') .. 'wake:' .. client, message)
  return type(heard) == 'number' and heard > 0
end
