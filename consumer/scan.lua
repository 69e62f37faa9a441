-- Reads a whole small collection together with the header.
-- KEYS: 1 header, 2 counts, 3 collection. ARGV: 1 its name. Returns: {header pairs, time, document pairs}.
-- For PERSIST see read.lua.
redis.call('PERSIST', KEYS[1])
miscounted(KEYS[1], KEYS[2])
local there = readable(KEYS[1], KEYS[2], ARGV[1], KEYS[3])
return {redis.call('HGETALL', KEYS[1]), redis.call('TIME'), there and redis.call('HGETALL', KEYS[3]) or {}}
