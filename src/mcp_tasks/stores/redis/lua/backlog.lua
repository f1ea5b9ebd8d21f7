-- Of each queue of a namespace: its name, how many tasks are queued or were to wake before a place, where the first one
-- stands that became queued, and the first one that was to wake. Either may be missing.

local namespace, before = take(), take()

local order, found = {}, {}
-- An index is in the order of queues, a colon, and the place: from queue to queue.
for number, each in ipairs({ { 'queued:', ';' }, { 'parked:', ':' .. before } }) do
  local index, first = P .. each[1] .. namespace, '-'
  while true do
    local member = call('ZRANGEBYLEX', index, first, '+', 'LIMIT', 0, 1)[1]
    local queue = member and string.match(member, '^([^:]*):')
    if not queue then
      break
    end
    local from, to = '[' .. queue .. ':', '(' .. queue .. each[2]
    local count = call('ZLEXCOUNT', index, from, to)
    if count > 0 then
      if not found[queue] then
        found[queue] = { queue, 0, '', '' }
        order[#order + 1] = found[queue]
      end
      local row = found[queue]
      row[2], row[number + 2] = row[2] + count, string.sub(member, #queue + 2, #queue + 9)
    end
    first = '[' .. queue .. ';'
  end
end
return order
