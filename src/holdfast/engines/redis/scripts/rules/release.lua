-- Release and withdraw, as in rules/transitions.py.

local function gone(record, nonce)
  local place = place_of(record.ended, nonce)
  if place then
    return { 'gone', record.ended[place][REASON], record.ended[place][NOTE] }
  end
  return { 'gone', #record.holders > 0 and 'stolen' or 'expired', '' }
end

-- A tombstone refuses a copy of this attempt that may still arrive. Returns whether the record has changed.
local function add_tombstone(record, nonce, linger, now)
  if linger <= 0 then
    return false
  end
  local attempt = { nonce, 'withdrawn', '', now + linger }
  local place = place_of(record.ended, nonce)
  if place then
    local known = record.ended[place]
    if known[FORGET_AT] >= attempt[FORGET_AT] then
      return false
    end
    attempt[REASON], attempt[NOTE] = known[REASON], known[NOTE]
  end
  local ended = without(record.ended, nonce)
  ended[#ended + 1] = attempt
  record.ended = ended
  return true
end

-- Removes this attempt and deals the next turns.
local function remove(record, nonce, linger, now)
  local place = waits_at(record, nonce)
  record.holders = without(record.holders, nonce)
  if place then
    keep_waiters(record, function(other) return other ~= place end)
  end
  deal_turns(record, now)
  add_tombstone(record, nonce, linger, now)
end

local function release(record, ask, now)
  local linger, nonce = tonumber(ask[1]), ask[2]
  if not place_of(record.holders, nonce) then
    local answer = gone(record, nonce)
    return answer, add_tombstone(record, nonce, linger, now)
  end
  remove(record, nonce, linger, now)
  return DONE, true
end

local function withdraw(record, ask, now)
  local linger, nonce, is_changed = tonumber(ask[1]), ask[2], true
  if place_of(record.holders, nonce) or waits_at(record, nonce) then
    remove(record, nonce, linger, now)
  else
    is_changed = add_tombstone(record, nonce, linger, now)
  end
  return with_holders({ 'withdrawn', exact(now) }, record.holders), is_changed
end
