-- Applies one step: all documents, their counts, and the header, or nothing.
-- KEYS: 1 header, 2 epoch, 3 collections, 4 counts, 5... one hash for each collection written to.
-- ARGV: 1 epoch, 2 incarnation, 3 applied offset that is expected, 4 the new one, 5 channel, 6 count of header words,
--       header words..., then for each collection: name, count of words to set, field, value..., count of fields to
--       delete, field...; the last one is what is announced of the documents.
-- Returns: {'ok' | 'already' | the check that failed, what was found}.
local LIMIT = 1000 -- words in one command: unpack() has a stack of 8000. Even, so that pairs stay together.

local wrong = failed(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if wrong then
  -- The client repeats a call whose reply was lost. Only this owner moves this incarnation, and only forwards.
  if wrong[1] == 'offset' and wrong[2] == ARGV[4] then return {'already', wrong[2]} end
  return wrong
end

-- What is lost must be found before it is counted anew.
local what = miscounted(KEYS[1], KEYS[4])
if what then return {'damaged', what} end
local at = 7 + tonumber(ARGV[6])
local leftovers = {}
for k = 5, #KEYS do
  local count = redis.call('HGET', KEYS[4], ARGV[at])
  what = count and incomplete(KEYS[1], ARGV[at], KEYS[k], count)
  if what then return {'damaged', what} end
  if not count then leftovers[#leftovers + 1] = KEYS[k] end
  at = at + 2 + tonumber(ARGV[at + 1])
  at = at + 1 + tonumber(ARGV[at])
end
for _, key in ipairs(leftovers) do redis.call('UNLINK', key) end

local function in_chunks(command, key, first, last)
  for from = first, last, LIMIT do
    redis.call(command, key, unpack(ARGV, from, math.min(from + LIMIT - 1, last)))
  end
end

at = 7 + tonumber(ARGV[6])
for k = 5, #KEYS do
  local name, sets = ARGV[at], tonumber(ARGV[at + 1])
  in_chunks('HSET', KEYS[k], at + 2, at + 1 + sets)
  if sets > 0 then redis.call('SADD', KEYS[3], name) end
  local deletes = tonumber(ARGV[at + 2 + sets])
  in_chunks('HDEL', KEYS[k], at + 3 + sets, at + 2 + sets + deletes)
  redis.call('HSET', KEYS[4], name, redis.call('HLEN', KEYS[k]))
  at = at + 3 + sets + deletes
end
in_chunks('HSET', KEYS[1], 7, 6 + tonumber(ARGV[6]))
redis.call('HSET', KEYS[1], 'seen_ms', now_ms(), 'counted', redis.call('HLEN', KEYS[4]))
redis.call('PUBLISH', ARGV[5], ARGV[2] .. ' ' .. ARGV[4] .. '\n' .. ARGV[#ARGV])
return {'ok', ARGV[4]}
