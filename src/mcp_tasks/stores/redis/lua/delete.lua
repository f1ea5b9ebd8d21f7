-- Forget a task that is still at the expected version. Gives `deleted`, or `conflict`.

local id, expected, now, again = take(), take(), optional(take()), take() == '1'

local version = call('HGET', P .. 't:' .. id, 'v')
if not version and again then
  -- An earlier attempt deleted it.
  return 'deleted'
end
if version ~= expected then
  return 'conflict'
end
forget(id, now)
return 'deleted'
