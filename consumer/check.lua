-- Shared by all scripts of an owner; put in front of them.
local HEADER_FIELDS = 12 -- as headers.py writes them, with those of the scripts

-- Says which check fails, or nil: the epoch is the caller's, the projection the one it began and whole as far as anybody
-- knows, its position where it left it.
local function failed(header, epoch, wanted_epoch, wanted_incarnation, wanted_offset)
  local stored_epoch = redis.call('GET', epoch)
  local stored = redis.call('HMGET', header, 'incarnation', 'applied_offset', 'damaged')
  if not stored_epoch then return {'lost', ''} end
  if stored_epoch ~= wanted_epoch then return {'epoch', stored_epoch} end
  if stored[3] then return {'damaged', stored[3]} end
  if not stored[1] or redis.call('HLEN', header) < HEADER_FIELDS then return {'lost', ''} end
  if stored[1] ~= wanted_incarnation then return {'incarnation', stored[1]} end
  if stored[2] ~= wanted_offset then return {'offset', stored[2]} end
  return nil
end

local function now_ms()
  local time = redis.call('TIME')
  return string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
end
