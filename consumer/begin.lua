-- Begins a projection whose former documents are all deleted.
-- KEYS: 1 header, 2 epoch, 3 collections, 4 counts. ARGV: 1 epoch, 2 incarnation, 3 channel, header words...
-- Returns: {'ok' | 'already' | 'epoch' | 'lost' | 'dirty', what was found}.
local epoch = redis.call('GET', KEYS[2])
if epoch ~= ARGV[1] then return {epoch and 'epoch' or 'lost', epoch or ''} end
local incarnation = redis.call('HGET', KEYS[1], 'incarnation')
if incarnation == ARGV[2] then return {'already', incarnation} end
if incarnation then return {'dirty', incarnation} end
local left = math.max(redis.call('SCARD', KEYS[3]), redis.call('HLEN', KEYS[4]))
if left > 0 then return {'dirty', tostring(left)} end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
redis.call('HSET', KEYS[1], 'seen_ms', now_ms(), 'counted', 0)
redis.call('PUBLISH', ARGV[3], ARGV[2] .. ' 0')
return {'ok', ARGV[2]}
