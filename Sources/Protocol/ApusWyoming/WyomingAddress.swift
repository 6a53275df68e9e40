package import ApusCore

/// Where a provider listens: at a unix socket, or at a loopback address. The protocol has no authentication and no
/// encryption, so that other addresses are refused.
///
/// Pure value.
package enum WyomingAddress: Sendable, Hashable, CustomStringConvertible {
    case unix(String)
    case tcp(HostPort)

    /// The longest path of a unix socket, in bytes.
    package static let pathByteCountMax = 107

    /// - Parameter text: `unix:PATH` or `tcp:HOST:PORT`.
    /// - Throws: 10022 if it is neither, or if the host is not a loopback address.
    package init(_ text: String) throws(ApusError) {
        if text.hasPrefix("unix:") {
            let path = String(text.dropFirst(5))
            guard (1...Self.pathByteCountMax).contains(path.utf8.count) else {
                throw ApusError(.configurationInvalid, "the path of a unix socket has 1 to 107 bytes")
            }
            self = .unix(path)
        } else if text.hasPrefix("tcp:"), let address = HostPort(String(text.dropFirst(4))) {
            guard address.isLoopback else {
                throw ApusError(
                    .configurationInvalid,
                    "\(address.host) is not a loopback address; Wyoming has no authentication and no encryption")
            }
            self = .tcp(address)
        } else {
            throw ApusError(.configurationInvalid, "\(text) is not unix:PATH or tcp:HOST:PORT")
        }
    }

    package var description: String {
        switch self {
        case .unix(let path): "unix:\(path)"
        case .tcp(let address): "tcp:\(address)"
        }
    }
}
