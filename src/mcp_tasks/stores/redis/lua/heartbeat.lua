-- Count one heartbeat more. A worker beats for one namespace: its count moves with it.

local worker, beats = take(), take()
-- A server without memory refuses a script at its first write, unless that one only frees memory; what follows is taken.
-- No worker has this name.
call('HDEL', P .. 'beating', '')
local before = call('HGET', P .. 'beating', worker)
if before and before ~= beats then
  local count = call('HGET', P .. before, worker)
  call('HSET', P .. beats, worker, count or 0)
  call('HDEL', P .. before, worker)
end
call('HSET', P .. 'beating', worker, beats)
return call('HINCRBY', P .. beats, worker, 1)
