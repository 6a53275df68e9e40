package import ApusCore

/// Whether a voice client has a token (VA-4).
public enum VoiceAuthorizationState: String, Sendable, Hashable, CaseIterable {
    /// Nobody has approved the device yet.
    case uninitialized = "UNINITIALIZED"
    /// It has a token: from its database, or a new one.
    case refreshed = "REFRESHED"
    /// Its token has expired, and the next one could not be fetched yet. The client keeps trying.
    case expired = "EXPIRED"
    /// The approval was refused, or has ended. Only ``VoiceClient/resetIVS()`` begins again.
    case unrecoverableError = "UNRECOVERABLE_ERROR"
}

/// What a voice client shows to a person, who approves it (VA-3).
public struct VoiceAuthorization: Sendable, Hashable {
    /// The address of the page.
    public var url: String
    /// Such as `WDJB-MJHT`. A person types it on the page.
    public var userCode: String
    /// The address of the page with the code, for a web view or a QR code. The page ends at `close://success` or
    /// `close://failed`.
    public var completeURL: String

    public init(url: String, userCode: String, completeURL: String) {
        (self.url, self.userCode, self.completeURL) = (url, userCode, completeURL)
    }
}

/// A time, by the wall clock and by the clock since the device was started. The wall clock of a device may be set at
/// any moment, and the other one begins again with each start.
package struct VoiceTime: Sendable, Hashable {
    /// Unix seconds.
    package var wall: Int64
    package var up: MonotonicTime

    package init(wall: Int64, up: MonotonicTime) { (self.wall, self.up) = (wall, up) }
}

/// A token of a voice client, as its database has it.
package struct VoiceToken: Sendable, Hashable {
    package var token: String
    package var refresh: String
    /// When it was received, and when it expires, in Unix seconds of the device's clock.
    package var received: Int64
    package var expires: Int64

    package init(token: String, refresh: String, received: Int64, expires: Int64) {
        (self.token, self.refresh, self.received, self.expires) = (token, refresh, received, expires)
    }
}

/// The codes that a device has received (RFC 8628 §3.2).
package struct VoiceCodes: Sendable, Hashable {
    package var deviceCode: String
    package var shown: VoiceAuthorization
    package var lifetime: Duration
    package var interval: Duration

    package init(deviceCode: String, shown: VoiceAuthorization, lifetime: Duration, interval: Duration) {
        (self.deviceCode, self.shown, self.lifetime, self.interval) = (deviceCode, shown, lifetime, interval)
    }
}

/// What the cluster has answered to the question for a token.
package enum VoiceAnswer: Sendable, Equatable {
    /// A token with its lifetime in seconds.
    case token(String, refresh: String, lifetime: Int64)
    case pending
    case slowDown
    /// A person has refused.
    case denied
    /// The code, or the refresh token, is not valid any more.
    case invalid
    /// The question can be asked again.
    case failed(ApusError)
}
