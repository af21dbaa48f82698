-- A release hands the lock to the first waiter: rules/handoff.py. A waiter without a subscribed connection may be dead.
-- It gets a turn instead, which expires before long.
local function release_to_next(record, ask, now, wall_us, _, key)
  local answer, is_changed = release(record, ask, now)
  if answer ~= DONE or record.kind ~= 'lock' or #record.holders > 0 or #record.turns == 0 then
    return answer, is_changed
  end
  remove_expired(record, now)
  local nonce, _, client, _, since, wants = cmsgpack.unpack(record.queue[1])
  if wants and now - since <= CAME_SECONDS and not place_of(record.ended, nonce) then
    local token = next_token(record, wall_us)
    if token and notify(key, client, nonce, token, now - since) then
      grant(record, nonce, { cmsgpack.unpack(wants) }, nil, 1, now, wall_us)
    end
  end
  return answer, is_changed
end
