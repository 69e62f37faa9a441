-- Reads whole small collections together with the header.
-- KEYS: 1 header, 2 counts, 3... collections. ARGV: their names. Returns: {header pairs, time, document pairs...}.
-- For PERSIST see read.lua.
redis.call('PERSIST', KEYS[1])
miscounted(KEYS[1], KEYS[2])
local answer = {false, redis.call('TIME')}
for k = 3, #KEYS do
  local there = readable(KEYS[1], KEYS[2], ARGV[k - 2], KEYS[k])
  answer[k] = there and redis.call('HGETALL', KEYS[k]) or {}
end
answer[1] = redis.call('HGETALL', KEYS[1])
return answer
