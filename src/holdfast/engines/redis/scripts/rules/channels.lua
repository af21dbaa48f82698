-- A wake-up goes to the channel of the client. A failure (a user without the right to publish) changes
-- nothing that was decided: whoever waits looks again by itself before long.
local function wake(key, client, nonce)
  redis.pcall('PUBLISH', string.match(key, '^holdfast:[^:]*:') .. 'wake:' .. client, nonce)
end
