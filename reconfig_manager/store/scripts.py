"""What must happen at once in the store, as scripts that run inside it.

Every write of a leader checks, in the same script, that no newer fence has been given out: what a
deposed leader still sends changes nothing. Scripts get all their keys by name, tell no time, and
run on Redis 6.2 and Valkey alike. Fences stay below 2^53, where Lua's numbers are exact.
"""

from __future__ import annotations

# A fence that is not the newest: {"deposed", newest}.
_FENCED = """\
local newest = tonumber(redis.call('GET', KEYS[1]) or '0')
if newest ~= tonumber(ARGV[1]) then
  return {'deposed', string.format('%.0f', newest)}
end
"""

# KEYS fence, lease; ARGV me, ttl in ms, least fence. The fence, or false if another leads.
ACQUIRE = """\
if redis.call('EXISTS', KEYS[2]) == 1 then
  return false
end
local fence = tonumber(redis.call('GET', KEYS[1]) or '0') + 1
if fence < tonumber(ARGV[3]) then
  fence = tonumber(ARGV[3])
end
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[1], text)
redis.call('SET', KEYS[2], text .. ' ' .. ARGV[1], 'PX', ARGV[2])
return text
"""

# KEYS fence, lease; ARGV fence, me, ttl in ms. A lease that has run out while nobody else led is
# taken up again: the fence is still the newest.
RENEW = (
    _FENCED
    + """\
redis.call('SET', KEYS[2], ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
return {'ok'}
"""
)

# KEYS fence, lease; ARGV fence, me.
RELEASE = """\
if redis.call('GET', KEYS[2]) == ARGV[1] .. ' ' .. ARGV[2] then
  redis.call('DEL', KEYS[2])
end
return {'ok'}
"""

# KEYS fence, order, versions, open, epoch, number, placement, policy, constants, prefix of plans.
# ARGV fence, plan id, version, plan, over ('1' or '0'), epoch, most plans, placement, policy,
# constants; '' for what is not written. A policy begins with its version.
WRITE = (
    _FENCED
    + """\
local function version_of(policy)
  return tonumber(string.match(policy, '^%d+'))
end
local policy = redis.call('GET', KEYS[8])
if policy and ARGV[9] ~= '' and version_of(policy) >= version_of(ARGV[9]) then
  return {'overtaken'}
end
local id = ARGV[2]
if id ~= '' then
  local before = tonumber(redis.call('HGET', KEYS[3], id) or '-1')
  if before >= tonumber(ARGV[3]) then
    return {'overtaken'}
  end
  redis.call('SET', KEYS[10] .. id, ARGV[4])
  redis.call('HSET', KEYS[3], id, ARGV[3])
  if before < 0 then
    redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[6]), id)
  end
  if ARGV[5] == '1' then
    redis.call('SREM', KEYS[4], id)
  else
    redis.call('SADD', KEYS[4], id)
  end
  if tonumber(ARGV[6]) > tonumber(redis.call('GET', KEYS[5]) or '0') then
    redis.call('SET', KEYS[5], ARGV[6])
  end
  local excess = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[7])
  if excess > 0 then
    local last = excess + redis.call('SCARD', KEYS[4])
    for _, old in ipairs(redis.call('ZRANGE', KEYS[2], 0, last)) do
      if excess > 0 and redis.call('SISMEMBER', KEYS[4], old) == 0 then
        redis.call('ZREM', KEYS[2], old)
        redis.call('HDEL', KEYS[3], old)
        redis.call('DEL', KEYS[10] .. old)
        excess = excess - 1
      end
    end
  end
end
for i = 7, 9 do
  if ARGV[i + 1] ~= '' then
    redis.call('SET', KEYS[i], ARGV[i + 1])
  end
end
return {'ok'}
"""
)

# KEYS fence, target; ARGV fence, value.
KEEP = (
    _FENCED
    + """\
redis.call('SET', KEYS[2], ARGV[2])
return {'ok'}
"""
)

# KEYS number, stream; ARGV entry, most entries, its key, among how many of the last it may be
# already (0 for one that is new).
APPEND_AUDIT = """\
if ARGV[4] ~= '0' then
  for _, there in ipairs(redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', ARGV[4])) do
    if there[2][4] == ARGV[3] then
      return {'there'}
    end
  end
end
local number = redis.call('INCR', KEYS[1])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], string.format('%.0f-1', number),
  'entry', ARGV[1], 'key', ARGV[3])
return {'ok'}
"""

# KEYS plans by key, ends by key; ARGV key, plan id, now in s, end in s, most keys. The plan that
# has the key.
REMEMBER = """\
local function forget(keys)
  for _, key in ipairs(keys) do
    redis.call('HDEL', KEYS[1], key)
    redis.call('ZREM', KEYS[2], key)
  end
end
forget(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[3], 'LIMIT', 0, 100))
local holder = redis.call('HGET', KEYS[1], ARGV[1])
if holder then
  return holder
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
local excess = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[5])
if excess > 0 then
  forget(redis.call('ZRANGE', KEYS[2], 0, excess - 1))
end
return ARGV[2]
"""
