-- An operator drops the projection; the projector notices and begins it again.
-- The counts stay: they name what is to be cleared, and without the header nobody believes them.
-- KEYS: 1 header, 2 accepted. ARGV: 1 channel, 2 offset below which gaps are accepted, or "".
if ARGV[2] ~= '' then redis.call('SET', KEYS[2], ARGV[2]) end
local dropped = redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[1], ' 0')
return {'ok', tostring(dropped)}
