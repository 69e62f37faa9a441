-- Shared by all scripts that touch documents; put in front of them.
-- The counts have the number of documents of every collection, the header the number of collections that are counted;
-- they change only together with the documents. A collection without a count has no documents: what is found in its
-- hash is a leftover of a former projection.

-- Marks the header as that of a damaged projection: from now on it is as good as lost.
local function damage(header, what)
  if redis.call('EXISTS', header) == 1 then redis.call('HSETNX', header, 'damaged', what) end
  return what
end

-- Says what is missing of the counts, or nil.
local function miscounted(header, counts)
  local counted = redis.call('HGET', header, 'counted') or 'no'
  local found = string.format('%.0f', redis.call('HLEN', counts))
  if counted ~= found then return damage(header, string.format('it counts %s of %s collections', found, counted)) end
end

-- Says what is missing of a collection that has this count, or nil.
local function incomplete(header, name, key, count)
  local found = string.format('%.0f', redis.call('HLEN', key))
  if count ~= found then
    return damage(header, string.format('it has %s of %s documents in %s', found, count, name))
  end
end

-- Looks at one collection that is to be read; says whether there is anything in it.
local function readable(header, counts, name, key)
  local count = redis.call('HGET', counts, name)
  if count then incomplete(header, name, key, count) end
  return count
end
