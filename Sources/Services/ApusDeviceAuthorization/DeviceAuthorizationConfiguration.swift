import ApusClientAPI
package import ApusConfiguration
package import ApusCore

/// The bounds of devices that ask for a token with a user code (VA-3, VA-4), with keys under `authorization.`.
package struct DeviceAuthorizationConfiguration: ServiceConfiguration {
    /// The time in which a code can be approved, and the token be fetched. Key `authorization.code_lifetime`.
    package var codeLifetime: Duration = .seconds(600)
    /// How long a device waits between two questions. Key `authorization.poll_interval`.
    package var pollInterval: Duration = .seconds(5)
    /// The codes that a node makes in a minute. With the lifetime it bounds the codes that are stored. Key
    /// `authorization.codes_per_minute`.
    package var codesPerMinute = 600
    /// Those for one address (IPv6: /64). Key `authorization.codes_per_minute_each`.
    package var codesPerMinuteEach = 20
    /// The user codes that an account, and on the page an address, may try at a node in a minute. Key
    /// `authorization.attempts_per_minute`.
    package var attemptsPerMinute = 10
    /// The lifetime of a token. Key `authorization.token_lifetime`.
    package var tokenLifetime: Duration = .seconds(86_400)
    /// The lifetime of a refresh token; each refresh begins it again. Key `authorization.refresh_lifetime`.
    package var refreshLifetime: Duration = Self.lifetimeMax
    /// The longest lifetime of a token: a revocation is kept at least as long (``AccountConfiguration``).
    private static let lifetimeMax = Duration.seconds(30 * 86_400)
    /// The address of the page for people, with scheme and without a path; empty: that at which the device has asked.
    /// Key `authorization.url`.
    package var url = ""

    package init() {}

    /// Reads the keys under `authorization.`.
    ///
    /// - Throws: 10022 if a value is out of its range.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        codeLifetime = try reader.duration("authorization.code_lifetime", default: codeLifetime)
        pollInterval = try reader.duration("authorization.poll_interval", default: pollInterval)
        codesPerMinute = try reader.int("authorization.codes_per_minute", default: codesPerMinute, in: 1...60_000)
        codesPerMinuteEach = try reader.int(
            "authorization.codes_per_minute_each", default: codesPerMinuteEach, in: 1...60_000)
        attemptsPerMinute = try reader.int(
            "authorization.attempts_per_minute", default: attemptsPerMinute, in: 1...1000)
        tokenLifetime = try reader.duration("authorization.token_lifetime", default: tokenLifetime)
        refreshLifetime = try reader.duration("authorization.refresh_lifetime", default: refreshLifetime)
        url = try reader.string("authorization.url", default: url)
        guard (.seconds(10) ... .seconds(3600)).contains(codeLifetime) else {
            throw reader.invalid("authorization.code_lifetime", "10s to 1h is expected")
        }
        guard (.seconds(1) ... .seconds(60)).contains(pollInterval) else {
            throw reader.invalid("authorization.poll_interval", "1s to 1m is expected")
        }
        guard (.seconds(5)...Self.lifetimeMax).contains(tokenLifetime) else {
            throw reader.invalid("authorization.token_lifetime", "5s to 720h is expected")
        }
        guard (tokenLifetime...Self.lifetimeMax).contains(refreshLifetime) else {
            throw reader.invalid("authorization.refresh_lifetime", "token_lifetime to 720h is expected")
        }
        guard url.isEmpty || (url.hasPrefix("https://") || url.hasPrefix("http://")) && !url.hasSuffix("/") else {
            throw reader.invalid("authorization.url", "https://HOST or http://HOST is expected")
        }
    }
}
