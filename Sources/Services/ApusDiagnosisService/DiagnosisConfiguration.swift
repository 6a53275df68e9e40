import ApusClientAPI
package import ApusConfiguration
package import ApusCore

/// The bounds of the play sessions that are kept for a diagnosis (IV-G4).
package struct DiagnosisConfiguration: Sendable, Hashable {
    /// Play sessions that are kept of one device. Beyond it, the oldest one of the account with the most is dropped.
    /// Key `diagnosis.sessions_max`.
    package var sessionsMax = 16
    /// Play sessions that are kept of one device and one account. Beyond it, the oldest one is dropped. Key
    /// `diagnosis.account_sessions_max`.
    package var accountSessionsMax = 8
    /// How long they are kept after the last report or diagnosis of the device. Key `diagnosis.keep_time`.
    package var keepTime: Duration = .seconds(3600)

    package init() {}
}

extension DiagnosisConfiguration: ServiceConfiguration {
    /// Reads the keys under `diagnosis.`.
    ///
    /// - Throws: 10022 if a value is out of its range.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        sessionsMax = try reader.int("diagnosis.sessions_max", default: sessionsMax, in: 1...256)
        accountSessionsMax = try reader.int(
            "diagnosis.account_sessions_max", default: accountSessionsMax, in: 1...256)
        keepTime = try reader.duration("diagnosis.keep_time", default: keepTime)
        guard (.seconds(60) ... .seconds(86_400)).contains(keepTime) else {
            throw reader.invalid("diagnosis.keep_time", "1m to 24h is expected")
        }
    }
}
