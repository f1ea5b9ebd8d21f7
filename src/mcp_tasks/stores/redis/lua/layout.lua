-- Mark what begins with the prefix as a task store of this layout, unless it is one of a newer. Gives its layout, and
-- from which on older releases may use it.

local layout, compatible_from, meta = take(), take(), P .. 'meta'
if call('TYPE', meta).ok == 'none' then
  call('HSET', meta, 'layout', layout, 'compatible_from', compatible_from)
end
if call('TYPE', meta).ok ~= 'hash' then
  return { '', '' }
end
local found = call('HMGET', meta, 'layout', 'compatible_from')
local before = tonumber(found[1] or '')
if before and found[2] and before < tonumber(layout) then
  call('HSET', meta, 'layout', layout, 'compatible_from', compatible_from)
  found = { layout, compatible_from }
end
return { found[1] or '', found[2] or '' }
