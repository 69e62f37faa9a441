-- Reads a page of a collection together with the header.
-- KEYS: 1 header, 2 collection. ARGV: 1 cursor, 2 count.
-- Returns: {header pairs, time, {next cursor, document pairs}}. For PERSIST see read.lua.
redis.call('PERSIST', KEYS[1])
return {redis.call('HGETALL', KEYS[1]), redis.call('TIME'), redis.call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])}
