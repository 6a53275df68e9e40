import HTTPTypes
import Hummingbird
import NIOCore
import NIOSSL

/// What a handler knows of a request beside its text: where it comes from, and whether it is encrypted.
struct HTTPContext: RequestContext {
    var coreContext: CoreRequestContextStorage
    let remote: SocketAddress?
    let isEncrypted: Bool

    init(source: ApplicationRequestContextSource) {
        coreContext = .init(source: source)
        remote = source.channel.remoteAddress
        isEncrypted = (try? source.channel.pipeline.syncOperations.handler(type: NIOSSLServerHandler.self)) != nil
    }

    /// True for a peer on this machine: 127.0.0.0/8, ::1, the same as mapped IPv4, and sockets of the file system.
    var isFromThisMachine: Bool { remote.map(Self.isThisMachine) ?? false }

    static func isThisMachine(_ address: SocketAddress) -> Bool {
        guard let text = address.ipAddress else { return true }
        return text == "::1" || text.hasPrefix("127.") || text.hasPrefix("::ffff:127.")
    }
}
