package redisstore

import "github.com/redis/go-redis/v9"

// Every script of the package. Each works on one key, reads the time of Redis once, and counts in microseconds. A
// number of microseconds since 1970 fits a double, which is what Lua has, until the year 2255.
//
// The hash of a key has the fields
//
//	version       of this list
//	state         claimed, released, done
//	fingerprint   of the request that has the key
//	fence         of its last claim
//	attempt       how often it was claimed
//	token         of the last Claim
//	leased_until  claimed: until when
//	expires_at, status, headers, body, body_hash, omitted, result_ref   done: the answer
//
//	          claim                   finish
//	(none) ----------> claimed --------------------> done
//	                    |   ^
//	            release |   | claim, of the same fingerprint; also when the lease ran out
//	                    v   |
//	                  released                any state ---- expiry ----> (none)

// Claims a key, or reports who has it. ARGV: fingerprint, token, lease, ttl.
var claimScript = redis.NewScript(`-- redisstore.claim
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local lease, ttl = tonumber(ARGV[3]), tonumber(ARGV[4])
local k = redis.call('HMGET', KEYS[1], 'version', 'state', 'fingerprint', 'fence', 'attempt', 'token', 'leased_until')
local fence, attempt = now, 1
if k[1] or redis.call('EXISTS', KEYS[1]) == 1 then
  local state, last = k[2], tonumber(k[4])
  if k[1] ~= '1' or not k[3] or not last then
    return {'unusable'}
  end
  if state == 'done' then
    local a = redis.call('HMGET', KEYS[1], 'expires_at', 'status', 'headers', 'body', 'body_hash', 'omitted', 'result_ref')
    return {'done', k[3], a[1], a[2], a[3], a[4], a[5], a[6], a[7]}
  end
  local until_, count = tonumber(k[7]), tonumber(k[5])
  if (state ~= 'claimed' and state ~= 'released') or not count or (state == 'claimed' and not until_) then
    return {'unusable'}
  end
  if k[6] == ARGV[2] then -- this very Claim has been here: its answer was lost
    if state == 'released' then
      return {'busy', k[3]}
    end
    redis.call('HSET', KEYS[1], 'leased_until', string.format('%.0f', now + lease))
    redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil((now + math.max(lease, ttl)) / 1000)))
    return {'mine', string.format('%.0f', last), tostring(count)}
  end
  if k[3] ~= ARGV[1] or (state == 'claimed' and until_ > now) then
    return {'busy', k[3]}
  end
  fence, attempt = math.max(now, last + 1), count + 1
end
redis.call('HSET', KEYS[1], 'version', '1', 'state', 'claimed', 'fingerprint', ARGV[1], 'token', ARGV[2],
  'fence', string.format('%.0f', fence), 'attempt', string.format('%.0f', attempt),
  'leased_until', string.format('%.0f', now + lease))
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil((now + math.max(lease, ttl)) / 1000)))
return {'mine', string.format('%.0f', fence), string.format('%.0f', attempt)}
`)

// Extends a lease. ARGV: fence, lease. Answers 1, or 0 if the caller does not have the key.
var renewScript = redis.NewScript(`-- redisstore.renew
local k = redis.call('HMGET', KEYS[1], 'state', 'fence')
if k[1] ~= 'claimed' or k[2] ~= ARGV[1] then
  return 0
end
local clock = redis.call('TIME')
local now, lease = clock[1] * 1000000 + clock[2], tonumber(ARGV[2])
redis.call('HSET', KEYS[1], 'leased_until', string.format('%.0f', now + lease))
if redis.call('PTTL', KEYS[1]) < lease / 1000 then
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil((now + lease) / 1000)))
end
return 1
`)

// Stores the answer. ARGV: fence, ttl, status, headers, body, body_hash, omitted, result_ref. Answers until when it is
// kept, or empty text if the caller does not have the key. Under a fence that has finished it changes nothing.
var finishScript = redis.NewScript(`-- redisstore.finish
local k = redis.call('HMGET', KEYS[1], 'state', 'fence', 'expires_at')
if k[2] ~= ARGV[1] or (k[1] ~= 'claimed' and k[1] ~= 'done') then
  return ''
end
if k[1] == 'done' then
  return k[3]
end
local clock = redis.call('TIME')
local expires = clock[1] * 1000000 + clock[2] + tonumber(ARGV[2])
redis.call('HSET', KEYS[1], 'state', 'done', 'expires_at', string.format('%.0f', expires),
  'status', ARGV[3], 'headers', ARGV[4], 'body', ARGV[5], 'body_hash', ARGV[6], 'omitted', ARGV[7], 'result_ref', ARGV[8])
redis.call('HDEL', KEYS[1], 'leased_until')
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil(expires / 1000)))
return string.format('%.0f', expires)
`)

// Gives a claim up. ARGV: fence. The fingerprint and the fence stay until the key expires.
var releaseScript = redis.NewScript(`-- redisstore.release
local k = redis.call('HMGET', KEYS[1], 'state', 'fence')
if k[1] == 'claimed' and k[2] == ARGV[1] then
  redis.call('HSET', KEYS[1], 'state', 'released')
  redis.call('HDEL', KEYS[1], 'leased_until')
end
return 1
`)
