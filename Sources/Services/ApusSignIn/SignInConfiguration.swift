import ApusClientAPI
package import ApusConfiguration
package import ApusCore

/// The bounds of browsers that sign in (docs/sign-in.md), with keys under `sign_in.`.
package struct SignInConfiguration: ServiceConfiguration {
    /// How long a browser stays signed in; at most as long as the token with which it has signed in. Key
    /// `sign_in.lifetime`.
    package var lifetime: Duration = .seconds(7 * 86_400)
    /// The longest lifetime: a revocation is kept at least as long.
    private static let lifetimeMax = Duration.seconds(30 * 86_400)
    /// The time in which a code can be used. Key `sign_in.code_lifetime`.
    package var codeLifetime: Duration = .seconds(600)
    /// The codes that operators make at a node in a minute. With the lifetime it bounds the codes that are stored. Key
    /// `sign_in.codes_per_minute`.
    package var codesPerMinute = 60
    /// The sign-ins that a node tries in a minute. Key `sign_in.attempts_per_minute`.
    package var attemptsPerMinute = 600
    /// Those of one address (IPv6: /64). Key `sign_in.attempts_per_minute_each`.
    package var attemptsPerMinuteEach = 20
    /// The sign-ins of one account at a node in an hour. Each may end with a revocation, of which the cluster keeps a
    /// limited number. Key `sign_in.sign_ins_per_hour_each`.
    package var signInsPerHourEach = 60

    package init() {}

    /// Reads the keys under `sign_in.`.
    ///
    /// - Throws: 10022 if a value is out of its range.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        lifetime = try reader.duration("sign_in.lifetime", default: lifetime)
        codeLifetime = try reader.duration("sign_in.code_lifetime", default: codeLifetime)
        codesPerMinute = try reader.int("sign_in.codes_per_minute", default: codesPerMinute, in: 1...6000)
        attemptsPerMinute = try reader.int("sign_in.attempts_per_minute", default: attemptsPerMinute, in: 1...60_000)
        attemptsPerMinuteEach = try reader.int(
            "sign_in.attempts_per_minute_each", default: attemptsPerMinuteEach, in: 1...60_000)
        signInsPerHourEach = try reader.int(
            "sign_in.sign_ins_per_hour_each", default: signInsPerHourEach, in: 1...6000)
        guard (.seconds(10)...Self.lifetimeMax).contains(lifetime) else {
            throw reader.invalid("sign_in.lifetime", "10s to 720h is expected")
        }
        guard (.seconds(1) ... .seconds(3600)).contains(codeLifetime) else {
            throw reader.invalid("sign_in.code_lifetime", "1s to 1h is expected")
        }
    }
}
