-- Release. KEYS: the record. ARGV: linger, nonce. See rules/giving_back.lua.
local raw = redis.call('GET', KEYS[1])
--@include clock

-- It is the only holder, nobody waits or watches, and no copy of the attempt may still arrive.
if raw and ARGV[1] == '0' and string.byte(raw) == 1 then
  local _, schema, kind, limit, declared, token, nonce, _, expires_at = cmsgpack.unpack_limit(raw, 8)
  if nonce == ARGV[2] and expires_at > now then
    redis.call('SET', KEYS[1], cmsgpack.pack(schema, kind, limit, declared, token), 'PX', '86400000')
    return 1
  end
end

--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquiring
--@include rules/giving_back
--@include rules/applying

return apply(KEYS[1], nil, release, ARGV)
