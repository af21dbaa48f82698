-- Acquire, as in rules/transitions.py.

-- Larger than every earlier token and, if the counter is lost, larger than the tokens before the loss.
local function next_token(record, wall_us)
  local token = math.max(record.token + 1, wall_us)
  return token < MAX_TOKEN and token
end

-- A new grant is answered with its token alone, unless there is more to say.
local function granted(record, holder, now, is_fresh, age)
  local lasts = holder[UNTIL] and holder[UNTIL] - now
  local mode, kind = holder[MODE], record.kind or 'lock'
  local answer = {
    'granted', holder[TOKEN], kind, mode, exact(holder[TTL]), exact(lasts), holder[METADATA], exact(age or 0),
  }
  if mode == 'read' or mode == 'permit' then
    for _, peer in ipairs(record.holders) do
      if peer ~= holder and (peer[MODE] == 'read' or peer[MODE] == 'permit') then
        answer[#answer + 1] = peer[TOKEN]
      end
    end
  end
  if is_fresh and not lasts and #answer == 8 then
    return holder[TOKEN]
  end
  return answer
end

local function mismatch(record, kind, limit)
  if not record.kind or record.kind == kind and
    (kind ~= 'semaphore' or limit == record.declared or limit == record.limit) then
    return nil
  end
  return { 'mismatch', record.kind, record.declared }
end

-- The claim has the last fields of the holder: client, owner, mode, ttl, whether it renews, until, metadata.
local function grant(record, nonce, claim, max_hold, place, now, wall_us)
  local token = next_token(record, wall_us)
  if not token then
    return { 'exhausted' }
  end
  local client, owner, mode, ttl, renews, _, metadata = unpack(claim)
  local until_ = max_hold and now + max_hold or false
  local expires_at = capped(now + ttl, until_)
  local holder = { nonce, now, expires_at, token, client, owner, mode, ttl, renews, until_, metadata }
  record.token = token
  record.holders = with_row(record.holders, #record.holders + 1, holder)
  if place then
    keep_waiters(record, function(other) return other ~= place end)
  end
  deal_turns(record, now)
  return granted(record, holder, now, true), true
end

-- The claim, as text, is stored with the place in the queue where a release can hand the lock over.
local function enqueue(record, nonce, claim, wants, place, now)
  local text = place and record.queue[place]
  if not place then
    local client, owner, mode = unpack(claim)
    place, text = #record.queue + 1, cmsgpack.pack(nonce, mode, client, owner, now)
    record.queue = with_row(record.queue, place, text)
  end
  if wants and not select(6, cmsgpack.unpack(text)) then
    record.queue = with_row(record.queue, place, text .. cmsgpack.pack(wants))
  end
  record.deadlines[place] = now + PATIENCE_SECONDS
  deal_turns(record, now)
  return queued(record, place, next_event_at(record), now), true
end

-- ARGV: kind and limit, the claim, ttl, how long to keep the record, options, nonce. Options: whether it waits, whether
-- it is fair, and after a space max_hold if there is one.
local function acquire(record, ask, now, wall_us)
  local kind, limit = cmsgpack.unpack(ask[1])
  local claim, options, nonce = { cmsgpack.unpack(ask[2]) }, ask[5], ask[6]
  local waits, fair = string.sub(options, 1, 1) == '1', string.sub(options, 2, 2) == '1'
  local refused = mismatch(record, kind, limit)
  if refused then
    return refused
  end
  local holds = place_of(record.holders, nonce)
  if holds then
    local holder = record.holders[holds]
    return granted(record, holder, now, false, math.max(now - holder[SINCE], 0))
  end
  local ended = place_of(record.ended, nonce)
  if ended then
    return { 'gone', record.ended[ended][REASON], record.ended[ended][NOTE] }
  end
  local is_changed = not record.kind
  if is_changed then
    record.kind, record.limit, record.declared = kind, limit, limit
  end
  local place, mode, may = waits_at(record, nonce), claim[3], nil
  if place then
    may = record.turns[place] or not fair and admits(record, modes_of(record.holders), mode)
  else
    may = may_pass(record, mode, fair)
  end
  if may then
    local max_hold = tonumber(string.sub(options, 4))
    local answer, is_granted = grant(record, nonce, claim, max_hold, place, now, wall_us)
    return answer, is_granted or is_changed
  elseif waits then
    local wants = kind == 'lock' and fair and #options == 2 and ask[2]
    return enqueue(record, nonce, claim, wants, place, now)
  end
  return with_holders({ 'busy', exact(now) }, record.holders), is_changed
end
