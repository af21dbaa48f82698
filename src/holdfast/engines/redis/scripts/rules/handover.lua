-- Stop, export, adopt, downgrade and break, as in rules/transitions.py.

-- A copy of the holder, in its place in the record, to be changed; nil: it is gone.
local function take_holder(record, nonce)
  local place = place_of(record.holders, nonce)
  if not place then
    return nil
  end
  local holder = { unpack(record.holders[place]) }
  record.holders = with_row(record.holders, place, holder)
  return holder
end

local function stop(record, ask)
  local holder = take_holder(record, ask[1])
  if not holder then
    return gone(record, ask[1])
  end
  holder[RENEWS] = false
  return DONE, true
end

local function export(record, ask, now)
  local seal, nonce = ask[1], ask[2]
  local holder = take_holder(record, nonce)
  if not holder then
    return gone(record, nonce)
  end
  holder[CLIENT], holder[OWNER], holder[RENEWS] = '', seal, false
  holder[EXPIRES_AT] = extended(holder, holder[TTL], now)
  return DONE, true
end

local function adopt(record, ask, now)
  local client, owner, seal, renews, nonce = unpack(ask)
  local holder = take_holder(record, nonce)
  if not holder then
    return gone(record, nonce)
  elseif holder[CLIENT] ~= client and (holder[CLIENT] ~= '' or holder[OWNER] ~= seal) then
    return { 'gone', 'stolen', 'it was not exported with this secret, or another client adopted it' }
  end
  holder[CLIENT], holder[OWNER], holder[RENEWS] = client, owner, renews == '1'
  holder[EXPIRES_AT] = extended(holder, holder[TTL], now)
  return granted(record, holder, now), true
end

local function downgrade(record, ask, now, wall_us)
  local reader_nonce, nonce = ask[1], ask[2]
  local reads = place_of(record.holders, reader_nonce)
  if reads then
    return granted(record, record.holders[reads], now)
  elseif place_of(record.ended, reader_nonce) then
    return gone(record, reader_nonce)
  end
  local holder = take_holder(record, nonce)
  if not holder or holder[MODE] ~= 'write' then
    return gone(record, nonce)
  end
  local token = next_token(record, wall_us)
  if not token then
    return { 'exhausted' }
  end
  holder[EXPIRES_AT] = extended(holder, holder[TTL], now)
  holder[NONCE], holder[MODE], holder[TOKEN], holder[SINCE] = reader_nonce, 'read', token, now
  record.token = token
  deal_turns(record, now)
  return granted(record, holder, now), true
end

local function break_(record, ask, now, wall_us)
  local only, reason = tonumber(ask[1]), ask[2]
  local victims, holders, ended = {}, {}, without(record.ended, nil)
  for _, holder in ipairs(record.holders) do
    if not only or holder[TOKEN] == only then
      victims[#victims + 1] = holder
      ended[#ended + 1] = { holder[NONCE], 'broken', reason, now + holder[TTL] + BROKEN_KEPT_SECONDS }
    else
      holders[#holders + 1] = holder
    end
  end
  if #victims == 0 then
    return { 'broken', 0 }
  end
  local token = next_token(record, wall_us)
  if not token then
    return { 'exhausted' }
  end
  record.token, record.holders, record.ended = token, holders, ended
  deal_turns(record, now)
  return with_holders({ 'broken', token }, victims), true, victims
end
