-- Whether the record is of a lock with waiters and nothing else: no tombstone, no watcher, and no waiter that has
-- expired. This is the common case of a contended lock. It reads what acquire and release need, without creating a
-- function. The rules say what the record becomes: see queueing.lua.
local is_contended, _, kind, limit, declared, last_token, holders, queue, deadlines, turns, ended, watchers = false, nil
if raw and string.sub(raw, 1, 2) == BEGINS_FULL then
  is_contended, _, _, kind, limit, declared, last_token, holders, queue, deadlines, turns, ended, watchers =
    pcall(cmsgpack.unpack, raw)
  is_contended = is_contended and kind == 'lock' and watchers and #queue > 0 and #ended + #watchers == 0
  for place = 1, is_contended and #deadlines or 0 do
    is_contended = is_contended and deadlines[place] > now
  end
end
