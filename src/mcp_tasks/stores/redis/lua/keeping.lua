-- How long a task is kept, and forgetting it.

-- Once a task has ended and has a retention, the server removes it by itself if no sweep does: `left` remembers where it
-- is in the indexes. Any other task stays, whatever happens.
local function keep_for(id, milliseconds, packed, key, had_ended)
  if milliseconds then
    call('HSET', P .. 'left', id, packed)
    call('PEXPIRE', P .. 't:' .. id, milliseconds)
    call('PEXPIRE', P .. 'j:' .. id, milliseconds)
    if key then
      call('PEXPIRE', P .. key, milliseconds)
    end
  elseif had_ended and call('HDEL', P .. 'left', id) == 1 then
    call('PERSIST', P .. 't:' .. id)
    call('PERSIST', P .. 'j:' .. id)
    if key then
      call('PERSIST', P .. key)
    end
  end
end

-- An idempotency key is a string with the id of the task that stands under it.
local function free_key(id, key)
  if key and call('GET', P .. key) == id then
    call('DEL', P .. key)
  end
end

local function forget(id)
  local found = call('HMGET', P .. 't:' .. id, 'ix', 'h', 'k')
  reindex(id, unpacked(found[1]), found[2] == '1', NOWHERE, false)
  free_key(id, found[3])
  call('HDEL', P .. 'left', id)
  call('UNLINK', P .. 't:' .. id, P .. 'j:' .. id)
end
