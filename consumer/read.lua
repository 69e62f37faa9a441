-- Reads documents together with the header that they belong to; marks the header when some of them are lost.
-- KEYS: 1 header, 2 counts, 3... collections. ARGV: for each collection its name, the count of fields, field...
-- Returns: {header pairs, time, {values of a collection}...}.
-- PERSIST changes nothing here, but counts as a write, which a replica refuses: so the answer is a primary's.
local LIMIT = 1000
redis.call('PERSIST', KEYS[1])
miscounted(KEYS[1], KEYS[2])
local answer = {false, redis.call('TIME')}
local at = 1
for k = 3, #KEYS do
  local last = at + 1 + tonumber(ARGV[at + 1])
  local there = readable(KEYS[1], KEYS[2], ARGV[at], KEYS[k])
  local values = {}
  for from = at + 2, last, LIMIT do
    local to = math.min(from + LIMIT - 1, last)
    local some = there and redis.call('HMGET', KEYS[k], unpack(ARGV, from, to)) or {}
    for i = 1, to - from + 1 do values[#values + 1] = some[i] or false end
  end
  answer[#answer + 1] = values
  at = last + 1
end
answer[1] = redis.call('HGETALL', KEYS[1])
return answer
