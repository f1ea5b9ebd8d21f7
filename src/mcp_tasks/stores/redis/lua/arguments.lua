-- Every script begins with this: it takes its arguments one by one.
--
-- All keys begin with KEYS[1], which has the hash tag: in a cluster they are in one slot, on one server, so a script may
-- make up the names of the others.
--
-- A task is a hash, `t:ID`, and a list beside it, `j:ID`, its journal, three items to an entry. Its fields:
--   v version   s state   n namespace   o owner (missing: none)   st status   f "1" once it has ended
--   e when it expires   r request   b, m outcome   k where its idempotency key is kept   h "1" while dispatched
--   ix its places in the indexes, packed   ko microseconds for which its key outlives it, and kc when it was made; both
--   missing if the key does not
--
-- An index is a sorted set whose scores are all 0, so that its members are in the order of their bytes: a place (eight
-- bytes for an instant, none where the order means nothing), and behind it the id.

local P = KEYS[1]
local call = redis.call

local argument = 0
local function take()
  argument = argument + 1
  return ARGV[argument]
end

local function take_list()
  local list = {}
  for i = 1, tonumber(take()) do
    list[i] = take()
  end
  return list
end

local function optional(text)
  return text ~= '' and text or nil
end
