-- Behind fence.lua: SET of one key, with its options.
return {1, redis.call('SET', KEYS[2], unpack(ARGV, 2))}
