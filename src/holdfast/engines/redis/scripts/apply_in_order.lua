#!lua
-- Several names in one step, in the given order: `apply_in_order` of rules/transitions.py.
-- KEYS: the keys of the steps. ARGV: whether to stop at the first acquire that is not granted; then for each step its
-- request, the number of its keys, the number of its arguments, and the arguments.
--@include rules/constants
--@include clock
--@include rules/channels
--@include rules/record
--@include rules/queueing
--@include rules/acquire
--@include rules/release
--@include rules/renew
--@include rules/handover
--@include rules/inspection
--@include rules/apply
--@include rules/handoff

local HANDLERS = {
  acquire = acquire, release = release_to_next, withdraw = withdraw, renew = renew, refresh = refresh, stop = stop,
  export = export, adopt = adopt, downgrade = downgrade, ['break'] = break_, set_value = set_value,
  resize = resize, watch = watch, unwatch = unwatch, inspect = inspect,
}

local steps, key, argument = {}, 1, 2
while ARGV[argument] do
  local what, keys, arguments = ARGV[argument], tonumber(ARGV[argument + 1]), tonumber(ARGV[argument + 2])
  local ask = { unpack(ARGV, argument + 3, argument + 2 + arguments) }
  steps[#steps + 1] = { what = what, key = KEYS[key], value_key = keys > 1 and KEYS[key + 1], ask = ask }
  key, argument = key + keys, argument + 3 + arguments
  -- A record that cannot be decoded raises here, before any change.
  decode_record(steps[#steps].key, redis.call('GET', steps[#steps].key))
end

local answers = {}
for _, step in ipairs(steps) do
  local raw = redis.call('GET', step.key)
  local answer = apply(HANDLERS[step.what], step.ask, step.key, raw, step.value_key)
  answers[#answers + 1] = answer
  local is_granted = type(answer) == 'number' or answer[1] == 'granted'
  if ARGV[1] == '1' and step.what == 'acquire' and not is_granted then
    break
  end
end
return answers
