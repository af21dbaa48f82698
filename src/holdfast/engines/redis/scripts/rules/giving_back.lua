-- Giving back: the functions of that part of rules/transitions.py.

local BROKEN_KEPT_SECONDS = 3600.0

local function gone(record, nonce)
  local ended = find_ended(record, nonce)
  if ended then
    return { 'gone', ended[REASON], ended[NOTE] }
  end
  return { 'gone', #record.holders > 0 and 'stolen' or 'expired', '' }
end

-- Refuse this attempt should a copy of it still arrive.
local function remembering(record, nonce, linger, now)
  if linger <= 0 then
    return record
  end
  local attempt = { nonce, 'withdrawn', '', now + linger }
  local known = find_ended(record, nonce)
  if known then
    if known[FORGET_AT] >= attempt[FORGET_AT] then
      return record
    end
    attempt = with_fields(known, { [FORGET_AT] = attempt[FORGET_AT] })
  end
  local ended = filtered(record.ended, function(other) return other[NONCE] ~= nonce end)
  ended[#ended + 1] = attempt
  return replaced(record, { ended = ended })
end

-- The record with nothing of this attempt, and the next ones' turns dealt.
local function without(record, nonce, linger, now, admits)
  local function is_another(row) return row[NONCE] ~= nonce end
  local after = replaced(record, {
    holders = filtered(record.holders, is_another), queue = filtered(record.queue, is_another),
  })
  return remembering(turns(after, now, admits), nonce, linger, now)
end

local function release(record, ask, now, _, admits)
  local linger, nonce = tonumber(ask[1]), ask[2]
  if not find_holder(record, nonce) then
    return remembering(record, nonce, linger, now), gone(record, nonce)
  end
  return without(record, nonce, linger, now, admits), DONE
end

local function withdraw(record, ask, now, _, admits)
  local linger, nonce = tonumber(ask[1]), ask[2]
  local after
  if find_holder(record, nonce) or find_waiter(record, nonce) then
    after = without(record, nonce, linger, now, admits)
  else
    after = remembering(record, nonce, linger, now)
  end
  return after, with_holders({ 'withdrawn', exact(now) }, after.holders)
end

local function break_(record, ask, now, wall_us, admits)
  local only, reason = tonumber(ask[1]), ask[2]
  local victims, holders, ended = {}, {}, filtered(record.ended, function() return true end)
  for _, holder in ipairs(record.holders) do
    if not only or holder[TOKEN] == only then
      victims[#victims + 1] = holder
      ended[#ended + 1] = { holder[NONCE], 'broken', reason, now + holder[TTL] + BROKEN_KEPT_SECONDS }
    else
      holders[#holders + 1] = holder
    end
  end
  if #victims == 0 then
    return record, { 'broken', 0 }
  end
  local token = next_token(record, wall_us)
  if not token then
    return record, { 'exhausted' }
  end
  local after = replaced(record, { token = token, holders = holders, ended = ended })
  return turns(after, now, admits), with_holders({ 'broken', token }, victims), victims
end
