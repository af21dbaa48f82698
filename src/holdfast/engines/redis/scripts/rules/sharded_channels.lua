-- A wake-up goes to the channel of the client in the slot of the lock. A failure (a user without the right to
-- publish) changes nothing that was decided: whoever waits looks again by itself before long.
local function wake(key, client, nonce)
  local prefix, tag = string.match(key, '^(holdfast:[^:]*:)'), string.match(key, '{[^}]+}')
  redis.pcall('SPUBLISH', prefix .. 'wake:' .. tag .. ':' .. client, nonce)
end
