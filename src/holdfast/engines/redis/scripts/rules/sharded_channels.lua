-- Publishes to the channel of the client in the slot of the lock. A failure (a user without the permission to publish)
-- changes no decision: the waiter asks the server again before long. With a token the message says that the lock is
-- granted already, and how long the waiter had been in the queue. Returns whether a connection was subscribed.
local function notify(key, client, nonce, token, age)
  local prefix, tag = string.match(key, '^(holdfast:[^:]*:)'), string.match(key, '{[^}]+}')
  local message = token and nonce .. string.format('\n%.0f\n%.6f', token, age) or nonce
  local heard = redis.pcall('SPUBLISH', prefix .. 'wake:' .. tag .. ':' .. client, message)
  return type(heard) == 'number' and heard > 0
end
