-- Requests of wrk: each line of the file that REQUESTS names is a path, and a token where there is one.
local requests = {}

function init(arguments)
    for line in io.lines(os.getenv("REQUESTS")) do
        local path, token = line:match("^(%S+)%s*(%S*)$")
        local headers = {}
        if token ~= "" then headers["Authorization"] = "Bearer " .. token end
        requests[#requests + 1] = wrk.format("GET", path, headers)
    end
end

local next = 0

function request()
    next = next % #requests + 1
    return requests[next]
end

function done(summary, latency, calls)
    io.write(string.format("%d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
        latency:percentile(99), summary.errors.status + summary.errors.timeout + summary.errors.read))
end
