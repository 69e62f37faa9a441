-- Says that the owner has caught up (touch), that it stopped for an operator (halted), or only looks whether all is as it was.
-- KEYS: 1 header, 2 epoch, 3 counts, 4 what the key of every collection begins with (same slot).
-- ARGV: 1 epoch, 2 incarnation, 3 applied offset, 4 "1" to touch, 5 channel, 6 reason of a halt or "".
-- Returns: {'ok' | the check that failed, what was found}.
local SOME = 20 -- collections that are looked at; as a rule all but those of single agents
local wrong = failed(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if wrong then return wrong end
local what = miscounted(KEYS[1], KEYS[3])
local some = what and {} or redis.call('HRANDFIELD', KEYS[3], SOME, 'WITHVALUES')
for i = 1, #some, 2 do
  what = what or incomplete(KEYS[1], some[i], KEYS[4] .. some[i], some[i + 1])
end
if what then return {'damaged', what} end
if ARGV[4] == '1' then redis.call('HSET', KEYS[1], 'seen_ms', now_ms()) end
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[1], 'halted', ARGV[6])
  redis.call('PUBLISH', ARGV[5], ARGV[2] .. ' ' .. ARGV[3])
end
return {'ok', ARGV[3]}
