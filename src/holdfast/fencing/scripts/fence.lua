-- The rule of fencing/rule.py, as it runs in front of a write. Past the end of this file the mark has passed.
--
-- KEYS[1]  the fence of the resource: the newest mark, as text
-- ARGV[1]  the mark presented, as text (fencing/mark_text.py)
--
-- Refused: {0, what is stored}, or {0, ''} for a grant so old that its fence may have been forgotten since.
-- Tokens stay text except where they are compared: a number of 16 digits would be printed as 1.79e+15.
do
    local RETENTION = 604800 -- seconds: a week
    local MARGIN = 86400 -- as far as the clocks of two servers may differ
    local presented = ARGV[1]
    local token = string.match(presented, '^1:(%d+):')
    local stored = redis.call('GET', KEYS[1])
    local newest = presented
    if not stored then
        -- Clock tokens are microseconds since 1970, counters far smaller.
        local oldest = (redis.call('TIME')[1] - RETENTION) * 1000000
        if #token >= 16 and tonumber(token) < oldest then
            return {0, ''}
        end
    elseif stored ~= presented then
        local nonce, source, peers = string.match(presented, '^1:%d+:([^:]*):([^:]*):([%d,]*)$')
        local had_token, had_nonce, had_source, had_peers =
            string.match(stored, '^1:(%d+):([^:]*):([^:]*):([%d,]*)$')
        if not had_token then
            return {0, stored}
        end
        if source ~= '' and had_source ~= '' and source ~= had_source then
            return {0, stored}
        end
        local number, had_number = tonumber(token), tonumber(had_token)
        if number < had_number and not string.find(',' .. had_peers .. ',', ',' .. token .. ',', 1, true) then
            return {0, stored}
        end
        if number == had_number and nonce ~= '' and had_nonce ~= '' and nonce ~= had_nonce then
            return {0, stored}
        end
        if source == '' then
            source = had_source
        end
        if number < had_number or (number == had_number and not (had_nonce == '' and nonce ~= '')) then
            token, nonce, peers = had_token, had_nonce, had_peers
        end
        newest = '1:' .. token .. ':' .. nonce .. ':' .. source .. ':' .. peers
    end
    -- Counters never tell how old they are, so their fences are kept for ever.
    local is_timed = #token >= 16
    if newest ~= stored then
        if is_timed then
            redis.call('SET', KEYS[1], newest, 'EX', RETENTION + 2 * MARGIN)
        else
            redis.call('SET', KEYS[1], newest)
        end
    elseif is_timed then
        local left = redis.call('PTTL', KEYS[1])
        if left >= 0 and left < (RETENTION + MARGIN) * 1000 then
            redis.call('EXPIRE', KEYS[1], RETENTION + 2 * MARGIN)
        end
    end
end
