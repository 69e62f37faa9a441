-- Says that the owner has caught up (touch), that it stopped for an operator (halted), or only looks whether all is as it was.
-- KEYS: 1 header, 2 epoch. ARGV: 1 epoch, 2 incarnation, 3 applied offset, 4 "1" to touch, 5 channel, 6 reason of a halt or "".
-- Returns: {'ok' | the check that failed, what was found}.
local wrong = failed(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if wrong then return wrong end
if ARGV[4] == '1' then redis.call('HSET', KEYS[1], 'seen_ms', now_ms()) end
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[1], 'halted', ARGV[6])
  redis.call('PUBLISH', ARGV[5], ARGV[2] .. ' ' .. ARGV[3])
end
return {'ok', ARGV[3]}
