-- The mark that is stored, if there is one.
return {1, redis.call('GET', KEYS[1])}
