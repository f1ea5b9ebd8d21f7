-- Scripts that change tasks begin with this, behind the arguments.

-- ---- encryption
-- A process that opened the store while it was plain must not go on to write what can be read, once it is encrypted.
-- Encrypted values begin with a zero; Python writes the note.

local SEALED = { err = 'SEALED the store is encrypted' }

local function is_sealed_against(value)
  return string.byte(value, 1) ~= 0 and call('EXISTS', P .. 'note::mcp-tasks/encryption') == 1
end

-- ---- indexes
-- Where a task is to be found: `places`, pairs of an index and a place in it. While it is queued it stands in `line` as
-- well, by these; all but the last two are written so that colons part them, the rank and the places have eight bytes.
-- `size` is how many bytes are kept beside it, and `sized` the name under which `stored` adds those up for its owner.
local NAMESPACE, QUEUE, RANK, OWNER, TOOL, CREATED, SINCE = 1, 2, 3, 4, 5, 6, 7

local NOWHERE = { places = {}, line = {}, sized = '', size = 0 }

local function take_indexed()
  return { places = take_list(), line = take_list(), sized = take(), size = 0 }
end

local function pack(indexed)
  return cmsgpack.pack({ indexed.places, indexed.line, indexed.sized, indexed.size })
end

-- Of damaged places nothing is known: the task goes on, and its old members stay in the indexes.
local function unpacked(packed)
  local read, parts = pcall(cmsgpack.unpack, packed or '')
  if not read or type(parts) ~= 'table' or #parts ~= 4 then
    return NOWHERE
  end
  return { places = parts[1], line = parts[2], sized = parts[3], size = parts[4] }
end

local function is_queued(indexed)
  return #indexed.line > 0
end

-- The indexes of those that are dispatched or at work; Python writes the latter.
local function handed_of(namespace, queue, owner, tool)
  return 'handed-of:' .. namespace .. ':' .. queue .. ':' .. owner .. ':' .. tool
end

local function tool_handed(namespace, tool)
  return 'tool-handed:' .. namespace .. ':' .. tool
end

local function owner_at_work(namespace, owner)
  return 'owner-at-work:' .. namespace .. ':' .. owner
end

local function tool_at_work(namespace, tool)
  return 'tool-at-work:' .. namespace .. ':' .. tool
end

local function map_of(indexed, handed)
  local map, list, line = {}, indexed.places, indexed.line
  for i = 1, #list, 2 do
    map[list[i]] = list[i + 1]
  end
  if #line > 0 then
    local namespace, queue, owner, tool, created = line[NAMESPACE], line[QUEUE], line[OWNER], line[TOOL], line[CREATED]
    map['queued:' .. namespace] = queue .. ':' .. line[SINCE]
    if handed then
      map['handed:' .. namespace] = created
      map[handed_of(namespace, queue, owner, tool)] = ''
      map[tool_handed(namespace, tool)] = ''
    else
      map['waiting:' .. namespace] = created
      map['line:' .. namespace] = table.concat({ queue, line[RANK], owner, tool, created }, ':')
    end
  end
  return map
end

-- From where the task was found to where it is found from now on. Its owner never changes.
local function reindex(id, before, handed_before, after, handed_after)
  local old, new = map_of(before, handed_before), map_of(after, handed_after)
  for index, place in pairs(new) do
    if old[index] ~= place then
      call('ZADD', P .. index, 0, place .. id)
    end
  end
  for index, place in pairs(old) do
    if new[index] ~= place then
      call('ZREM', P .. index, place .. id)
    end
  end
  if before.size ~= after.size then
    local sized, grown = optional(after.sized) or before.sized, string.format('%.0f', after.size - before.size)
    if call('HINCRBY', P .. 'stored', sized, grown) <= 0 then
      call('HDEL', P .. 'stored', sized)
    end
  end
end

-- ---- shares

-- How many more there may be of what is in two indexes.
local function room(most, one, other)
  return most - call('ZCARD', P .. one) - (other and call('ZCARD', P .. other) or 0)
end

-- A share: how many of an owner, a queue and a tool may be dispatched, how many of an owner may be at work ('' for any
-- number), and so many pairs of a tool and how many of it may be in hand.
local function take_share()
  local list = take_list()
  if #list == 0 then
    return nil
  end
  local share = { owner = tonumber(list[1]), at_work = tonumber(list[2]), tools = {} }
  for i = 3, #list, 2 do
    share.tools[list[i]] = tonumber(list[i + 1])
  end
  return share
end

-- Only of what is at work, wherever the rest is: a tool that no worker serves holds nothing else back.
local function owner_room(share, namespace, owner)
  return share.at_work and room(share.at_work, owner_at_work(namespace, owner)) or math.huge
end

local function route_room(share, namespace, queue, owner, tool)
  return room(share.owner, handed_of(namespace, queue, owner, tool))
end

local function tool_room(share, namespace, tool)
  local most = share.tools[tool]
  return most and room(most, tool_handed(namespace, tool), tool_at_work(namespace, tool)) or math.huge
end

-- ---- keeping and removing

-- Once a task has ended and has a retention, the server removes it by itself if no sweep does: `left` remembers where it
-- is in the indexes. Any other task stays, whatever happens. A key that outlives its task has its time after that.
local function keep_for(id, milliseconds, packed, key, had_ended, outlives)
  local keys = { P .. 't:' .. id, P .. 'j:' .. id, key and P .. key or nil }
  if milliseconds then
    milliseconds = string.format('%.0f', tonumber(milliseconds) + math.ceil(tonumber(outlives or 0) / 1000))
    call('HSET', P .. 'left', id, packed)
    for _, each in ipairs(keys) do
      call('PEXPIRE', each, milliseconds)
    end
  elseif had_ended and call('HDEL', P .. 'left', id) == 1 then
    for _, each in ipairs(keys) do
      call('PERSIST', each)
    end
  end
end

-- The keys of the children of an open task are in `children:ID` as well, with the ids of the children: they stay when a
-- child is gone, until the parent has ended or is gone.
local function forget_children(id)
  call('UNLINK', P .. 'children:' .. id)
end

-- `now` is from when on the time of a key runs that outlives the task; if it is not given, the task's expiry. An
-- idempotency key is a string with the id of the task that stands under it. One that outlives its task is in `spent` from
-- then on, scored with the instant until which it does.
local function forget(id, now)
  local found = call('HMGET', P .. 't:' .. id, 'ix', 'h', 'k', 'ko', 'e', 'kc')
  local key, outlives, since = found[3], tonumber(found[4] or 0), now or found[5] or found[6]
  reindex(id, unpacked(found[1]), found[2] == '1', NOWHERE, false)
  if key and call('GET', P .. key) == id then
    call('DEL', P .. key)
    if since and outlives > 0 then
      call('ZADD', P .. 'spent', string.format('%.0f', tonumber(since) + outlives), key)
    end
  end
  call('HDEL', P .. 'left', id)
  call('UNLINK', P .. 't:' .. id, P .. 'j:' .. id)
  forget_children(id)
end
