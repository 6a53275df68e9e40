package import ApusChannels
import ApusClientAPI
package import ApusCore
package import ApusSessions
import Synchronization

/// Who may publish and play which channel: the one way to media for every edge and every service.
///
/// Channels of devices follow the rights to the devices. About all others the ``ChannelAuthority`` of their kind of
/// owner decides. An edge makes a ``MediaClient`` for each connection, and keeps only the form of its requests.
///
/// Isolation: any thread; a `Mutex` guards the authorities.
package final class MediaAccess: Sendable {
    package let sessions: SessionService
    package let channels: ChannelService
    private let authorities = Mutex<[ChannelOwner.Kind: any ChannelAuthority]>([:])

    package init(sessions: SessionService, channels: ChannelService) {
        (self.sessions, self.channels) = (sessions, channels)
    }

    /// From now on the authority decides about the channels of this kind of owner.
    ///
    /// - Precondition: it is not ``ChannelOwner/Kind/device``, and has no other authority.
    package func register(_ authority: any ChannelAuthority, for kind: ChannelOwner.Kind) {
        precondition(kind != .device, "the rights to devices decide about their channels")
        authorities.withLock { authorities in
            precondition(authorities[kind] == nil, "the channels of \(kind) have two authorities")
            authorities[kind] = authority
        }
    }

    /// Nil for devices, and where this node has no such service.
    func authority(of owner: ChannelOwner) -> (any ChannelAuthority)? { authorities.withLock { $0[owner.kind] } }

    /// The connection has ended.
    func closed(_ connection: any ClientConnection) {
        for authority in authorities.withLock({ Array($0.values) }) { authority.closed(connection) }
    }
}
