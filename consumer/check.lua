-- Shared by all scripts of an owner; put in front of them.
-- Says which check fails, or nil: the epoch is the caller's, the projection the one it began, its position where it left it.
local function failed(header, epoch, wanted_epoch, wanted_incarnation, wanted_offset)
  local stored_epoch = redis.call('GET', epoch)
  local stored = redis.call('HMGET', header, 'incarnation', 'applied_offset')
  if not stored_epoch then return {'lost', ''} end
  if stored_epoch ~= wanted_epoch then return {'epoch', stored_epoch} end
  if not stored[1] then return {'lost', ''} end
  if stored[1] ~= wanted_incarnation then return {'incarnation', stored[1]} end
  if stored[2] ~= wanted_offset then return {'offset', stored[2]} end
  return nil
end

local function now_ms()
  local time = redis.call('TIME')
  return string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
end
