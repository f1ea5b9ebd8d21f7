-- Workers that beat for a namespace or have a task in it, and how often each has beaten.

local beats, having = take(), take()
local found = call('HGETALL', P .. beats)
for _, worker in ipairs(call('HKEYS', P .. having)) do
  if call('HEXISTS', P .. beats, worker) == 0 then
    local elsewhere = call('HGET', P .. 'beating', worker)
    found[#found + 1] = worker
    found[#found + 1] = elsewhere and call('HGET', P .. elsewhere, worker) or '0'
  end
end
return found
