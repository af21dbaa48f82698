#!lua flags=allow-oom
-- The keeper's batch: renewals of holders, refreshes of waiters and watchers.
-- KEYS: the record of each step. ARGV: for each step its ttl (empty: it is a refresh) and its nonce.
--@include rules/constants
--@include clock

local answers, rest = {}, {}
for step, key in ipairs(KEYS) do
  local ttl, nonce = tonumber(ARGV[2 * step - 1]), ARGV[2 * step]
  -- Short path: the only holder, and nothing else in the record.
  local raw = ttl and redis.pcall('GET', key)
  local is_renewed = false
  if type(raw) == 'string' and string.sub(raw, 1, 2) == BEGINS_HELD_BY_ONE then
    local is_read, schema, shape, kind, limit, declared, last, mine, since, expires_at, token, client, owner, mode,
      _, renews, until_, metadata = pcall(cmsgpack.unpack, raw)
    if is_read and mine == nonce and expires_at > now then
      local later = now + ttl
      if until_ and until_ < later then
        later = until_
      end
      if later > expires_at then
        expires_at = later
      end
      local lives_ms = math.ceil((expires_at - now) * 1000) + RETENTION_MS
      redis.call('SET', key, cmsgpack.pack(schema, shape, kind, limit, declared, last, mine, since, expires_at,
        token, client, owner, mode, ttl, renews, until_, metadata), 'PX', lives_ms)
      is_renewed = true
    end
  end
  if is_renewed then
    answers[step] = DONE
  else
    rest[#rest + 1] = step
  end
end
if #rest == 0 then
  return answers
end

--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/release
--@include rules/renew
--@include rules/apply
--@include rules/renew_batch

return answers
