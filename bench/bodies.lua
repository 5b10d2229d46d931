-- For wrk: sends the bodies of a file, a line each, in turn, from the one on that the second argument says; the last line
-- that it prints is the measurement as JSON.

local requests, turn = {}, 0

function init(args)
  local headers = {["Content-Type"] = "application/json"}
  for body in io.lines(args[1]) do
    requests[#requests + 1] = wrk.format("POST", "/v1/completions", headers, body)
  end
  turn = tonumber(args[2]) % #requests
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary, latency)
  local failed = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "bytes": %d, "errors": %d, "median_us": %f}\n',
    summary.requests, summary.duration / 1e6, summary.bytes,
    failed.connect + failed.read + failed.write + failed.status + failed.timeout, latency:percentile(50)))
end
