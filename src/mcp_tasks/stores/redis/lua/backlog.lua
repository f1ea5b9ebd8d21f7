-- Of each queue of a namespace: its name, how many tasks are queued, and where the first one stands that became so.

local namespace = take()
local found = {}
for _, queue in ipairs(call('HKEYS', P .. 'queues:' .. namespace)) do
  local index = P .. 'since:' .. namespace .. ':' .. queue
  found[#found + 1] = { queue, call('ZCARD', index), call('ZRANGE', index, 0, 0)[1] }
end
return found
