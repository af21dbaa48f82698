-- Whether the record is of a lock for which some wait, and there is nothing else to say: no attempt was ended, nobody
-- watches, and none of those who wait has run out. Where many want a lock this is the common case, and reads what both
-- sides of handing it on need, without making a function. What it becomes the rules say: see queueing.lua.
local is_contended, _, kind, limit, declared, last_token, holders, queue, deadlines, turns, ended, watchers = false, nil
if raw and string.sub(raw, 1, 2) == BEGINS_FULL then
  is_contended, _, _, kind, limit, declared, last_token, holders, queue, deadlines, turns, ended, watchers =
    pcall(cmsgpack.unpack, raw)
  is_contended = is_contended and kind == 'lock' and watchers and #queue > 0 and #ended + #watchers == 0
  for place = 1, is_contended and #deadlines or 0 do
    is_contended = is_contended and deadlines[place] > now
  end
end
