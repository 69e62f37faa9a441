-- Deletes some collections of a projection that is to be begun again; the header goes first, so that nobody believes the rest.
-- KEYS: 1 header, 2 epoch, 3 collections, 4... hashes. ARGV: 1 epoch, then the names that belong to the hashes.
-- Returns: {'ok' | 'epoch' | 'lost', how many collections are left or what was found}.
local epoch = redis.call('GET', KEYS[2])
if epoch ~= ARGV[1] then return {epoch and 'epoch' or 'lost', epoch or ''} end
redis.call('DEL', KEYS[1])
for k = 4, #KEYS do
  redis.call('UNLINK', KEYS[k])
  redis.call('SREM', KEYS[3], ARGV[k - 2])
end
return {'ok', tostring(redis.call('SCARD', KEYS[3]))}
