-- Some fields of a task, if it has this owner ('' for nobody, otherwise behind a '='). Of another's nothing is read: it
-- takes as long as if there were none.

local task, owner, fields = P .. 't:' .. take(), take(), take_list()
local found = call('HGET', task, 'o')
if (found and '=' .. found or '') ~= owner then
  return false
end
return call('HMGET', task, unpack(fields))
