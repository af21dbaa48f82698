-- Acquiring: the functions of that part of rules/transitions.py.

local DONE = 1

-- Larger than every earlier one, and, should the counter be lost, larger than those before the loss.
local function next_token(record, wall_us)
  local token = math.max(record.token + 1, wall_us)
  return token < MAX_TOKEN and token
end

local function is_shared(holder)
  return holder[MODE] == 'read' or holder[MODE] == 'permit'
end

local function peers_of(record, holder)
  local peers = {}
  if is_shared(holder) then
    for _, other in ipairs(record.holders) do
      if other ~= holder and is_shared(other) then
        peers[#peers + 1] = other[TOKEN]
      end
    end
  end
  return peers
end

local function granted(record, holder, now)
  local lasts = holder[UNTIL] and exact(holder[UNTIL] - now) or ''
  local kind = record.kind or 'lock'
  local answer = { 'granted', holder[TOKEN], kind, holder[MODE], exact(holder[TTL]), lasts, holder[METADATA] }
  for _, peer in ipairs(peers_of(record, holder)) do
    answer[#answer + 1] = peer
  end
  return answer
end

-- To one whose own request was granted just now, its token says it all, unless there is more.
local function freshly_granted(record, holder, now)
  if holder[UNTIL] or #peers_of(record, holder) > 0 then
    return granted(record, holder, now)
  end
  return holder[TOKEN]
end

local function mismatch(record, kind, limit)
  if not record.kind or record.kind == kind and
    (kind ~= 'semaphore' or limit == record.declared or limit == record.limit) then
    return nil
  end
  return { 'mismatch', record.kind, record.declared }
end

local function queued(record, place, now)
  return { 'queued', place - 1, exact(look_in(record, place, now)), unpack(blockers(record, place)) }
end

-- The claim: client, owner, mode, ttl, whether it renews, until, metadata; as the holder's fields will be.
local function grant(record, nonce, claim, max_hold, place, now, wall_us, admits)
  local token = next_token(record, wall_us)
  if not token then
    return record, { 'exhausted' }
  end
  local client, owner, mode, ttl, renews, _, metadata = unpack(claim)
  local until_ = max_hold and now + max_hold
  local expires_at = capped(now + ttl, until_)
  local holder = {
    nonce, now, expires_at, token, client, owner, mode, ttl, renews, until_ or false, metadata,
  }
  local after = replaced(record, {
    token = token,
    holders = with_place(record.holders, #record.holders + 1, holder),
    queue = place and without_place(record.queue, place) or record.queue,
  })
  return turns(after, now, admits), freshly_granted(after, holder, now)
end

local function enqueue(record, nonce, claim, place, now, admits)
  local expires_at, waiter = now + PATIENCE_SECONDS, nil
  if place then
    waiter = with_fields(record.queue[place], { [EXPIRES_AT] = expires_at })
  else
    local client, owner, mode = unpack(claim)
    waiter = { nonce, now, expires_at, false, client, owner, mode }
    place = #record.queue + 1
  end
  local after = turns(replaced(record, { queue = with_place(record.queue, place, waiter) }), now, admits)
  return after, queued(after, place, now)
end

-- Options: whether it waits, whether it is fair, and after a space max_hold if there is one.
local function acquire(record, ask, now, wall_us, admits)
  local _, kind, limit = cmsgpack.unpack(ask[1])
  local claim, options, nonce = { cmsgpack.unpack(ask[2]) }, ask[5], ask[6]
  local waits, fair, max_hold = string.match(options, '^([01])([01]) ?(.*)$')
  local refused = mismatch(record, kind, limit)
  if refused then
    return record, refused
  end
  local holder = find_holder(record, nonce)
  if holder then
    return record, granted(record, holder, now)
  end
  local ended = find_ended(record, nonce)
  if ended then
    return record, { 'gone', ended[REASON], ended[NOTE] }
  end
  if not record.kind then
    record = replaced(record, { kind = kind, limit = limit, declared = limit })
  end
  local place, mode, may = find_waiter(record, nonce), claim[3], nil
  if place then
    may = record.queue[place][TURN_AT] or
      fair == '0' and admits(modes_of(record.holders), mode, record.limit)
  else
    may = may_pass(record, mode, fair == '1', admits)
  end
  if may then
    return grant(record, nonce, claim, tonumber(max_hold), place, now, wall_us, admits)
  elseif waits == '0' then
    return record, with_holders({ 'busy', exact(now) }, record.holders)
  end
  return enqueue(record, nonce, claim, place, now, admits)
end
