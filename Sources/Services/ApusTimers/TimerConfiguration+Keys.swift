import ApusClientAPI
package import ApusConfiguration
package import ApusCore

extension TimerConfiguration: ServiceConfiguration {
    /// Reads the keys under `timers.`.
    ///
    /// - Throws: 10022 if a value is out of its range.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        // All timers of a device may end with one message, each with an entry of its outbox.
        countMax = try reader.int("timers.count_max", default: countMax, in: 1...32)
        ringTime = try reader.duration("timers.ring_time", default: ringTime)
        lateMax = try reader.duration("timers.late_max", default: lateMax)
        guard (.seconds(1) ... .seconds(3600)).contains(ringTime) else {
            throw reader.invalid("timers.ring_time", "1s to 1h is expected")
        }
        guard (.seconds(1) ... .seconds(86_400)).contains(lateMax) else {
            throw reader.invalid("timers.late_max", "1s to 24h is expected")
        }
    }
}
