-- Reads documents together with the header that they belong to.
-- KEYS: 1 header, 2... collections. ARGV: for each collection the count of fields, field...
-- Returns: {header pairs, time, {values of a collection}...}.
-- PERSIST changes nothing here, but counts as a write, which a replica refuses: so the answer is a primary's.
local LIMIT = 1000
redis.call('PERSIST', KEYS[1])
local answer = {redis.call('HGETALL', KEYS[1]), redis.call('TIME')}
local at = 1
for k = 2, #KEYS do
  local last = at + tonumber(ARGV[at])
  local values = {}
  for from = at + 1, last, LIMIT do
    local some = redis.call('HMGET', KEYS[k], unpack(ARGV, from, math.min(from + LIMIT - 1, last)))
    for i = 1, #some do values[#values + 1] = some[i] end
  end
  answer[#answer + 1] = values
  at = last + 1
end
return answer
