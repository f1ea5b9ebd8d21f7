-- How long a task is kept, and forgetting it.

-- Once a task has ended and has a retention, the server removes it by itself if no sweep does: `left` remembers where it
-- is in the indexes. Any other task stays, whatever happens. A key that outlives its task has its time after that.
local function keep_for(id, milliseconds, packed, key, had_ended, outlives)
  if milliseconds then
    milliseconds = string.format('%.0f', tonumber(milliseconds) + math.ceil(tonumber(outlives or 0) / 1000))
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

-- An idempotency key is a string with the id of the task that stands under it. One that outlives its task is in `spent`
-- from then on, scored with the instant until which it does.

local function free_key(id, key, since, outlives)
  if not key or call('GET', P .. key) ~= id then
    return
  end
  call('DEL', P .. key)
  if since and outlives and tonumber(outlives) > 0 then
    call('ZADD', P .. 'spent', string.format('%.0f', tonumber(since) + tonumber(outlives)), key)
  end
end

-- The keys of the children of an open task are in `children:ID` as well, with the ids of the children: they stay when a
-- child is gone, until the parent has ended or is gone.
local function forget_children(id)
  call('UNLINK', P .. 'children:' .. id)
end

-- `now` is from when on the time of a key runs that outlives the task; if it is not given, the task's expiry.
local function forget(id, now)
  local found = call('HMGET', P .. 't:' .. id, 'ix', 'h', 'k', 'ko', 'e', 'kc')
  reindex(id, unpacked(found[1]), found[2] == '1', NOWHERE, false)
  free_key(id, found[3], now or found[5] or found[6], found[4])
  call('HDEL', P .. 'left', id)
  call('UNLINK', P .. 't:' .. id, P .. 'j:' .. id)
  forget_children(id)
end
