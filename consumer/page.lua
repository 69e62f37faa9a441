-- Reads a page of a collection together with the header.
-- KEYS: 1 header, 2 counts, 3 collection. ARGV: 1 name of the collection, 2 cursor, 3 count.
-- Returns: {header pairs, time, {next cursor, document pairs}}. For PERSIST see read.lua.
redis.call('PERSIST', KEYS[1])
miscounted(KEYS[1], KEYS[2])
local page = {'0', {}}
if readable(KEYS[1], KEYS[2], ARGV[1], KEYS[3]) then
  page = redis.call('HSCAN', KEYS[3], ARGV[2], 'COUNT', ARGV[3])
end
return {redis.call('HGETALL', KEYS[1]), redis.call('TIME'), page}
