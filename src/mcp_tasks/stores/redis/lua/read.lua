-- Some fields of a task, if it has this owner ('' for none, otherwise behind a '='; '*' for any). Of another owner's task
-- nothing is read: it takes as long as if there were none. The last field is left out if it has more than `most` bytes.

local task, owner, most, fields = P .. 't:' .. take(), take(), optional(take()), take_list()
if owner ~= '*' then
  local found = call('HGET', task, 'o')
  if (found and '=' .. found or '') ~= owner then
    return false
  end
end
local last = fields[#fields]
if most and call('HSTRLEN', task, last) > tonumber(most) then
  fields[#fields] = ''
end
return call('HMGET', task, unpack(fields))
