-- Forget the heartbeat of a worker.

local worker = take()
local beats = call('HGET', P .. 'beating', worker)
if beats then
  call('HDEL', P .. beats, worker)
  call('HDEL', P .. 'beating', worker)
end
return 0
