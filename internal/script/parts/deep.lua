-- deep tells whether field, which an acquire found in place, has another depth than one
-- grant gives it: a copy of the request came late, or an earlier client of the same id
-- has left it. The caller mends the latter.
local function deep(key, field)
  return redis.call('hget', key, field) ~= '1'
end
