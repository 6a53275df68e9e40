package import ApusCore
package import ApusSessions

/// The media of calls (CALL-13): the port that the calls service implements for the gateway.
///
/// The call decides who publishes and plays in it. A client that lost its node goes on with a grant while the call is
/// asked, so a failover of its media does not wait for the failover of the call.
///
/// Isolation: may be called from anywhere. `onChange` is called on any thread, and not after ``closed(_:)`` has
/// returned and the calls in progress have.
package protocol CallMedia: Sendable {
    /// The connection's client wants to publish, or to play, in a call.
    ///
    /// - Returns: its side, and the device on the other one, if it is one.
    /// - Throws: −2508 if there is no such call or it is over, −2500 if nobody has accepted it yet, −2522 if another
    ///   client has, 8003 if the client has no part in it or has lost its right to the other side, 20011 if a device in
    ///   it was disabled, 12004 for a session that takes no calls; 10005, 10010 and 10021 if the call cannot be asked.
    func open(
        _ call: String, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (CallMediaChange) -> Void
    ) async throws(ApusError) -> CallMediaRight

    /// The same for a client with a grant: the call is asked later, and until it answers.
    func resume(
        _ call: String, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (CallMediaChange) -> Void)

    /// False once the media of the connection's client in the call have ended.
    func isOpen(_ call: String, on connection: any ClientConnection) -> Bool

    /// The connection has ended.
    func closed(_ connection: any ClientConnection)
}

/// A client publishes the channel of its side, and plays that of the other.
package struct CallMediaRight: Sendable, Hashable {
    package let side: ChannelSide
    /// The device on the other side; nil for an app.
    package let peer: DeviceID?

    package init(side: ChannelSide, peer: DeviceID?) { (self.side, self.peer) = (side, peer) }
}

/// What becomes of a client's media in a call.
package enum CallMediaChange: Sendable {
    /// The call has confirmed what a grant permitted.
    case confirmed(CallMediaRight)
    /// The client may not publish and play in it any more; the errors of ``CallMedia/open(_:for:on:onChange:)``.
    case ended(ApusError)
}
