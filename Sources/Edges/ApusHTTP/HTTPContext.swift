import ApusTLS
import HTTPTypes
import Hummingbird
import NIOCore

/// The facts about a request's connection: the client's address, and whether it is encrypted.
struct HTTPContext: RequestContext {
    var coreContext: CoreRequestContextStorage
    let remote: SocketAddress?
    let isEncrypted: Bool
    /// Nil if the connection has ended.
    let departure: ClientDeparture?

    init(source: ApplicationRequestContextSource) {
        coreContext = .init(source: source)
        remote = source.channel.remoteAddress
        departure = (try? source.channel.pipeline.syncOperations.handler(type: ClientDepartureHandler.self))?.departure
        isEncrypted = (try? source.channel.pipeline.syncOperations.handler(type: TLSHandler.self)) != nil
    }

    /// True for a peer on this machine: 127.0.0.0/8 (also IPv4-mapped), ::1, and Unix domain sockets.
    var isFromThisMachine: Bool { remote.map(Self.isThisMachine) ?? false }

    static func isThisMachine(_ address: SocketAddress) -> Bool {
        guard let text = address.ipAddress else { return true }
        return text == "::1" || text.hasPrefix("127.") || text.hasPrefix("::ffff:127.")
    }
}
