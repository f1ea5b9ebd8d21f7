-- A task's places in the indexes, and moving it from some to others.

-- Where a task is to be found: `places`, pairs of an index and a place in it, and `worker`, the tally that counts it. While
-- it is queued it stands in `line` as well, by these; all but the two places are written so that colons part them.
local NAMESPACE, QUEUE, RANK, OWNER, TOOL, CREATED, SINCE = 1, 2, 3, 4, 5, 6, 7

local function take_indexed()
  return { places = take_list(), worker = take_list(), line = take_list() }
end

local NOWHERE = { places = {}, worker = {}, line = {} }

local function pack(indexed)
  return cmsgpack.pack({ indexed.places, indexed.worker, indexed.line })
end

-- Of damaged places nothing is known: the task goes on, and its old members stay in the indexes.
local function unpacked(packed)
  local read, parts = pcall(cmsgpack.unpack, packed or '')
  if not read or type(parts) ~= 'table' or #parts ~= 3 then
    return NOWHERE
  end
  return { places = parts[1], worker = parts[2], line = parts[3] }
end

local function is_queued(indexed)
  return #indexed.line > 0
end

-- The indexes of those that are handed out or at work; the latter are written by Python as well.
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

-- How many others are at work, for a task that stands at `place` among them. Those that are resuming stand at '1', and
-- only what is at work counts against them.
local function at_work_beside(index, place)
  if place == '1' then
    return call('ZLEXCOUNT', P .. index, '-', '(1')
  end
  return call('ZCARD', P .. index) - (place and 1 or 0)
end

local function map_of(indexed, handed)
  local map, list, line = {}, indexed.places, indexed.line
  for i = 1, #list, 2 do
    map[list[i]] = list[i + 1]
  end
  if #line > 0 then
    map['since:' .. line[NAMESPACE] .. ':' .. line[QUEUE]] = line[SINCE]
    if handed then
      map['handed:' .. line[NAMESPACE]] = line[CREATED]
      map[handed_of(line[NAMESPACE], line[QUEUE], line[OWNER], line[TOOL])] = ''
      map[tool_handed(line[NAMESPACE], line[TOOL])] = ''
    else
      map['waiting:' .. line[NAMESPACE]] = line[CREATED]
    end
  end
  return map
end

-- Counts in a hash: how many tasks there are of each name.
local function tally(hash, name, by)
  if call('HINCRBY', P .. hash, name, by) <= 0 then
    call('HDEL', P .. hash, name)
  end
end

-- Those that wait are in lanes: one for each queue, priority, owner and tool. `tools` has the tools that one owner has
-- lanes of, and `owners` the owners, so that `hand_out` goes from one to the next.
local function owners_of(namespace, queue, rank)
  return 'owners:' .. namespace .. ':' .. queue .. ':' .. rank
end

local function tools_of(namespace, queue, rank, owner)
  return 'tools:' .. namespace .. ':' .. queue .. ':' .. rank .. ':' .. owner
end

local function lane_of(namespace, queue, rank, owner, tool)
  return 'lane:' .. namespace .. ':' .. queue .. ':' .. rank .. ':' .. owner .. ':' .. tool
end

local function enter_lane(line, id)
  local namespace, queue, rank, owner, tool = line[NAMESPACE], line[QUEUE], line[RANK], line[OWNER], line[TOOL]
  call('ZADD', P .. lane_of(namespace, queue, rank, owner, tool), 0, line[CREATED] .. id)
  call('ZADD', P .. tools_of(namespace, queue, rank, owner), 0, tool)
  call('ZADD', P .. owners_of(namespace, queue, rank), 0, owner)
  tally('ranks:' .. namespace, rank .. ':' .. queue, 1)
end

local function leave_lane(line, id)
  local namespace, queue, rank, owner, tool = line[NAMESPACE], line[QUEUE], line[RANK], line[OWNER], line[TOOL]
  local lane, tools = P .. lane_of(namespace, queue, rank, owner, tool), P .. tools_of(namespace, queue, rank, owner)
  call('ZREM', lane, line[CREATED] .. id)
  if call('EXISTS', lane) == 0 then
    call('ZREM', tools, tool)
    if call('EXISTS', tools) == 0 then
      call('ZREM', P .. owners_of(namespace, queue, rank), owner)
    end
  end
  tally('ranks:' .. namespace, rank .. ':' .. queue, -1)
end

-- Bytes of requests, outcomes and journals of one owner are in `stored`, by the name of an index of its own in which the
-- place of each task is its size.
local function sized(size)
  return string.format('%.0f:', size)
end

local function size_of(place)
  return tonumber(string.match(place or '', '^%d+') or 0)
end

local function count_size(index, before, after)
  if string.sub(index, 1, 6) == 'sized:' then
    tally('stored', index, string.format('%.0f', size_of(after) - size_of(before)))
  end
end

-- From where the task was found to where it is found from now on. Its owner and its tool never change.
local function reindex(id, before, handed_before, after, handed_after)
  local old, new = map_of(before, handed_before), map_of(after, handed_after)
  for index, place in pairs(new) do
    if old[index] ~= place then
      call('ZADD', P .. index, 0, place .. id)
      count_size(index, old[index], place)
    end
  end
  for index, place in pairs(old) do
    if new[index] ~= place then
      call('ZREM', P .. index, place .. id)
      if not new[index] then
        count_size(index, place, nil)
      end
    end
  end
  if before.worker[1] ~= after.worker[1] or before.worker[2] ~= after.worker[2] then
    if #after.worker > 0 then
      tally(after.worker[1], after.worker[2], 1)
    end
    if #before.worker > 0 then
      tally(before.worker[1], before.worker[2], -1)
    end
  end
  local waited, waits = is_queued(before) and not handed_before, is_queued(after) and not handed_after
  local moved = before.line[QUEUE] ~= after.line[QUEUE] or before.line[RANK] ~= after.line[RANK]
  if waits and (moved or not waited) then
    enter_lane(after.line, id)
  end
  if waited and (moved or not waits) then
    leave_lane(before.line, id)
  end
  if moved then
    if is_queued(after) then
      tally('queues:' .. after.line[NAMESPACE], after.line[QUEUE], 1)
    end
    if is_queued(before) then
      tally('queues:' .. before.line[NAMESPACE], before.line[QUEUE], -1)
    end
  end
end
