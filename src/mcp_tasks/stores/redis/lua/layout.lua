-- Mark what begins with the prefix as a task store, unless it is one. Gives its layout, and from which on older releases
-- may use it.

local layout, meta = take(), P .. 'meta'
if call('TYPE', meta).ok == 'none' then
  call('HSET', meta, 'layout', layout, 'compatible_from', layout)
end
if call('TYPE', meta).ok ~= 'hash' then
  return { '', '' }
end
local found = call('HMGET', meta, 'layout', 'compatible_from')
return { found[1] or '', found[2] or '' }
