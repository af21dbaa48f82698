#!lua flags=allow-oom
-- Release. KEYS: the record. ARGV: linger, nonce. See rules/release.lua.
--@include rules/constants
local raw = redis.call('GET', KEYS[1])
--@include clock

-- Short path: the only holder, no waiter and no watcher, and no copy of the attempt can still arrive.
if raw and ARGV[1] == '0' and string.sub(raw, 1, 2) == BEGINS_HELD_BY_ONE then
  local is_read, _, kind, limit, declared, token, nonce, _, expires_at = pcall(cmsgpack.unpack_limit, raw, 7, 2)
  if is_read and nonce == ARGV[2] and expires_at > now then
    -- KEEPTTL keeps the record until a day after the lease would have ended. That is enough, and costs less.
    redis.call('SET', KEYS[1], BEGINS_IDLE .. cmsgpack.pack(kind, limit, declared, token), 'KEEPTTL')
    return DONE
  end
end

--@include rules/contended
--@include rules/channels

-- Short path: the first waiter gets the lock if it came just now and is subscribed. Otherwise it gets a turn.
if is_contended and ARGV[1] == '0' and #holders == 1 and #turns == 0 and holders[1][NONCE] == ARGV[2] and
  holders[1][EXPIRES_AT] > now then
  local nonce, _, client, _, since, wants = cmsgpack.unpack(queue[1])
  local token, latest = math.max(wall_us, last_token + 1), now
  if wants and now - since <= CAME_SECONDS and token < MAX_TOKEN and
    notify(KEYS[1], client, nonce, token, now - since) then
    local holder = { nonce, now, now, token, cmsgpack.unpack(wants) }
    latest = now + holder[TTL]
    holder[EXPIRES_AT] = latest
    holders, last_token = { holder }, token
    table.remove(queue, 1)
    table.remove(deadlines, 1)
  else
    holders, turns = {}, { now }
    notify(KEYS[1], client, nonce)
  end
  local text
  if #queue == 0 then
    text = cmsgpack.pack(SCHEMA, HELD_BY_ONE, kind, limit, declared, token, unpack(holders[1]))
  else
    for place = 1, #deadlines do
      latest = math.max(latest, deadlines[place])
    end
    text = cmsgpack.pack(SCHEMA, FULL, kind, limit, declared, last_token, holders, queue, deadlines, turns, {}, {})
  end
  redis.call('SET', KEYS[1], text, 'PX', math.ceil((latest - now) * 1000) + RETENTION_MS)
  return DONE
end

--@include rules/record
--@include rules/queueing
--@include rules/acquire
--@include rules/release
--@include rules/apply
--@include rules/handoff

return apply(release_to_next, ARGV, KEYS[1], raw)
