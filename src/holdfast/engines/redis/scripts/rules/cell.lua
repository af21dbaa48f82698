-- Cells, as in rules/transitions.py. A cell is the value of its name, and has no record.

local function version_of(raw)
  if not raw then
    return 0
  end
  local _, version = cmsgpack.unpack(raw)
  return version
end

local function cell_state(raw)
  if not raw then
    return { 'cell', 0, 0 }
  end
  local _, version, _, data = cmsgpack.unpack(raw)
  return { 'cell', version, 0, data }
end

local function swap_cell(key, expected, data, wall_us)
  local raw = redis.call('GET', key)
  local version = version_of(raw)
  if version ~= expected then
    return cell_state(raw)
  end
  version = math.max(version + 1, wall_us)
  if version >= MAX_TOKEN then
    return { 'exhausted' }
  end
  redis.call('SET', key, cmsgpack.pack(SCHEMA, version, MAX_TOKEN, data))
  return { 'cell', version, 1 }
end
