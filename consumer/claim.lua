-- Takes a partition for one projector: all applies of earlier owners are refused from now on. Nothing is believed before
-- every collection has as many documents as were counted.
-- KEYS: 1 epoch, 2 header, 3 accepted, 4 counts, 5 what the key of every collection begins with (same slot).
-- ARGV: 1 token, unique for each claim, so that a repeat of the call is the same claim.
-- Returns: epoch "<number>:<token>", header pairs, accepted offset.
local current = redis.call('GET', KEYS[1]) or ''
local number, token = string.match(current, '^(%d+):(.*)$')
if token ~= ARGV[1] then
  -- A number that only grows tells an earlier owner from a store that went back in time; doubles are exact up to 2^53.
  current = string.format('%.0f:%s', tonumber(number or '0') + 1, ARGV[1])
  redis.call('SET', KEYS[1], current)
end
if redis.call('EXISTS', KEYS[2]) == 1 and not miscounted(KEYS[2], KEYS[4]) then
  local counts = redis.call('HGETALL', KEYS[4])
  for i = 1, #counts, 2 do
    if incomplete(KEYS[2], counts[i], KEYS[5] .. counts[i], counts[i + 1]) then break end
  end
end
return {current, redis.call('HGETALL', KEYS[2]), redis.call('GET', KEYS[3]) or ''}
