package import ApusClientAPI
package import ApusCore
package import ApusSessions

/// Decides who may publish and play the channels of one kind of owner, such as calls. Any service can register one with
/// ``MediaAccess``.
///
/// A client that has lost its node continues with a grant while the authority is asked. A failover of media therefore
/// does not wait for the failover of their owner.
///
/// Isolation: may be called from anywhere. `onChange` is called on any thread, and not after ``closed(_:)`` has
/// returned and the calls in progress have.
package protocol ChannelAuthority: Sendable {
    /// The error of a client whose part in an owner ended while its stream was being opened.
    var endedError: ApusError { get }

    /// The channels of an owner that a grant may name.
    func channels(of owner: ChannelOwner) -> [ChannelID]

    /// The connection's client wants to publish or to play.
    ///
    /// - Returns: what it may publish and play.
    /// - Throws: why it may not, or that the owner cannot be asked.
    func open(
        _ owner: ChannelOwner, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (MediaChange) -> Void
    ) async throws(ApusError) -> MediaRight

    /// The same for a client with a grant: the owner is asked later, and until it answers.
    func resume(
        _ owner: ChannelOwner, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (MediaChange) -> Void)

    /// False once the media of the connection's client in the owner have ended.
    func isOpen(_ owner: ChannelOwner, on connection: any ClientConnection) -> Bool

    /// The connection has ended.
    func closed(_ connection: any ClientConnection)
}

/// What a client may publish and play of one owner.
package struct MediaRight: Sendable, Hashable {
    /// The client's own channel; nil if it may only play.
    package let publishes: ChannelID?
    package let plays: [ChannelID]
    /// The devices to which its account needs a right. Its grants end with the loss of one.
    package let devices: [DeviceID]

    package init(publishes: ChannelID?, plays: [ChannelID], devices: [DeviceID]) {
        (self.publishes, self.plays, self.devices) = (publishes, plays, devices)
    }
}

/// What becomes of a client's media in an owner.
package enum MediaChange: Sendable {
    /// The owner has confirmed what a grant permitted.
    case confirmed(MediaRight)
    /// The client may no longer publish and play in it.
    case ended(ApusError)
}
