-- Workers that beat for a namespace or have a task in it, and how often each has beaten. Those that have one are in the
-- order of their names, a colon, and the task: from worker to worker.

local beats, having, first = take(), take(), '-'
local found = call('HGETALL', P .. beats)
while true do
  local member = call('ZRANGEBYLEX', P .. having, first, '+', 'LIMIT', 0, 1)[1]
  local worker = member and string.match(member, '^([^:]*):')
  if not worker then
    return found
  end
  local name = string.gsub(string.gsub(worker, '%%3A', ':'), '%%25', '%%')
  if call('HEXISTS', P .. beats, name) == 0 then
    local elsewhere = call('HGET', P .. 'beating', name)
    found[#found + 1] = name
    found[#found + 1] = elsewhere and call('HGET', P .. elsewhere, name) or '0'
  end
  first = '[' .. worker .. ';'
end
