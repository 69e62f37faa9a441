-- Reads a whole small collection together with the header.
-- KEYS: 1 header, 2 collection. Returns: {header pairs, time, document pairs}. For PERSIST see read.lua.
redis.call('PERSIST', KEYS[1])
return {redis.call('HGETALL', KEYS[1]), redis.call('TIME'), redis.call('HGETALL', KEYS[2])}
