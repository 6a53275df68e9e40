import ApusClientAPI
package import ApusConfiguration
package import ApusCore
package import ApusOutgoing

/// The bounds of calls, and where their push notifications go.
package struct CallServiceConfiguration: ServiceConfiguration {
    package var calls = CallConfiguration()
    package var push = WebhookConfiguration()

    package init() {}

    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        try calls.read(&reader)
        try push.read(&reader)
    }
}

extension CallConfiguration {
    /// Reads the keys under `calls.`.
    mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        legsMax = try reader.int("calls.legs_max", default: legsMax, in: 1...64)
        startsPerMinute = try reader.int("calls.starts_per_minute", default: startsPerMinute, in: 1...60_000)
        ringTime = try reader.duration("calls.ring_time", default: ringTime)
        ringTimeMin = try reader.duration("calls.ring_time_min", default: ringTimeMin)
        ringTimeMax = try reader.duration("calls.ring_time_max", default: ringTimeMax)
        guard .seconds(1) <= ringTimeMin, ringTimeMin <= ringTime, ringTime <= ringTimeMax, ringTimeMax <= .seconds(600)
        else {
            throw reader.invalid(
                "calls.ring_time", "1s at least, ring_time_min, ring_time, ring_time_max and 10m at most, in this order"
            )
        }
        connectTime = try reader.duration("calls.connect_time", default: connectTime)
        durationMax = try reader.duration("calls.duration_max", default: durationMax)
        grace = try reader.duration("calls.grace", default: grace)
        claimTime = try reader.duration("calls.claim_time", default: claimTime)
        guard claimTime >= .seconds(10) else { throw reader.invalid("calls.claim_time", "10s at least are expected") }
        endedTime = try reader.duration("calls.ended_time", default: endedTime)
        keepConnectTime = try reader.duration("calls.keep_connect_time", default: keepConnectTime)
        mediaCheckInterval = try reader.duration("calls.media_check_interval", default: mediaCheckInterval)
        guard mediaCheckInterval >= .seconds(1) else {
            throw reader.invalid("calls.media_check_interval", "1s at least is expected")
        }
        resendAfter = try reader.duration("calls.resend_after", default: resendAfter)
    }
}
