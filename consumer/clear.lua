-- Deletes some collections of a projection that is to be begun again; the header goes first, so that nobody believes the rest.
-- KEYS: 1 header, 2 epoch, 3 collections, 4 counts, 5... hashes. ARGV: 1 epoch, then the names that belong to the hashes.
-- Returns: {'ok' | 'epoch' | 'lost', how many collections are left or what was found}.
local epoch = redis.call('GET', KEYS[2])
if epoch ~= ARGV[1] then return {epoch and 'epoch' or 'lost', epoch or ''} end
redis.call('DEL', KEYS[1])
for k = 5, #KEYS do
  redis.call('UNLINK', KEYS[k])
  redis.call('SREM', KEYS[3], ARGV[k - 3])
  redis.call('HDEL', KEYS[4], ARGV[k - 3])
end
return {'ok', tostring(math.max(redis.call('SCARD', KEYS[3]), redis.call('HLEN', KEYS[4])))}
