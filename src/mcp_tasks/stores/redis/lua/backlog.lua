-- Of each queue of a namespace: its name, how many tasks are queued or were to wake before a place, where the first one
-- stands that became queued, and the first one that was to wake. Either may be missing.

local namespace, before = take(), take()

local order, found = {}, {}
local function found_in(queue)
  if not found[queue] then
    found[queue] = { queue, 0, '', '' }
    order[#order + 1] = found[queue]
  end
  return found[queue]
end

for _, queue in ipairs(call('HKEYS', P .. 'queues:' .. namespace)) do
  local index, row = P .. 'since:' .. namespace .. ':' .. queue, found_in(queue)
  row[2], row[3] = call('ZCARD', index), call('ZRANGE', index, 0, 0)[1] or ''
end

-- Those that sleep are in the order of their queues, a colon, and the place: from queue to queue.
local parked, first = P .. 'parked:' .. namespace, '-'
while true do
  local member = call('ZRANGEBYLEX', parked, first, '+', 'LIMIT', 0, 1)[1]
  local queue = member and string.match(member, '^([^:]*):')
  if not queue then
    break
  end
  local from, to = '[' .. queue .. ':', '(' .. queue .. ':' .. before
  local count = call('ZLEXCOUNT', parked, from, to)
  if count > 0 then
    local row = found_in(queue)
    row[2], row[4] = row[2] + count, string.sub(call('ZRANGEBYLEX', parked, from, to, 'LIMIT', 0, 1)[1], #queue + 2)
  end
  first = '[' .. queue .. ';'
end
return order
