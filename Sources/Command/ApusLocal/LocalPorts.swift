package import ApusCore
import NIOCore
import NIOPosix

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Checks that a node's addresses are free before the node is started, so that an error can name the one in use.
package enum LocalPorts {
    /// How long to wait for a port. After a process was killed, its threads hold its sockets for a moment after the
    /// process has disappeared.
    private static let endingTimeout = Duration.seconds(3)

    /// Checks every address of a node over TCP, and over UDP if the node uses it.
    /// - Parameter namespace: the network namespace of the node; nil for that of this process.
    /// - Throws: 10019 with the address and its purpose, 10022 if the namespace cannot be entered.
    package static func requireFree(_ node: StateDirectory.Node, in namespace: String? = nil) async throws(ApusError) {
        for (purpose, text) in [
            ("node links", node.transport), ("devices and apps", node.clients), ("HTTP", node.http),
            ("relay", node.relay ?? ""),
        ] {
            guard let address = HostPort(text) else { continue }
            let deadline = MonotonicTime.now() + endingTimeout
            while true {
                do throws(ApusError) {
                    if let namespace {
                        try requireFree(address, purpose: purpose, in: namespace)
                    } else {
                        try await requireFree(address, purpose: purpose, node: node.name)
                    }
                    break
                } catch {
                    guard MonotonicTime.now() < deadline else { throw error }
                    try? await Task.sleep(for: .milliseconds(50))
                    if Task.isCancelled { throw error }
                }
            }
        }
    }

    /// True if this process could listen at the address over TCP.
    package static func isFree(_ address: HostPort) async -> Bool {
        let listener = try? await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .serverChannelOption(ChannelOptions.socketOption(.so_reuseaddr), value: 1)
            .bind(host: address.host, port: address.port).get()
        guard let listener else { return false }
        try? await listener.close()
        return true
    }

    private static func requireFree(_ address: HostPort, purpose: String, node: String) async throws(ApusError) {
        let group = MultiThreadedEventLoopGroup.singleton
        do {
            let channel = try await ServerBootstrap(group: group)
                .serverChannelOption(ChannelOptions.socketOption(.so_reuseaddr), value: 1)
                .bind(host: address.host, port: address.port).get()
            try await channel.close()
            if purpose == "node links" || purpose == "relay" {
                let datagrams = try await DatagramBootstrap(group: group).bind(host: address.host, port: address.port)
                    .get()
                try await datagrams.close()
            }
        } catch {
            throw ApusError(
                .addressInUse,
                "port \(address.port) of \(address.host), for the \(purpose) of \(node), is in use by another program: "
                    + "stop it or choose other ports with --base-port (\(error))")
        }
    }

    /// In a namespace, sockets are opened on a thread that has entered it.
    private static func requireFree(
        _ address: HostPort, purpose: String, in namespace: String
    ) throws(ApusError) {
        let types = purpose == "node links" || purpose == "relay" ? [SOCK_STREAM, SOCK_DGRAM] : [SOCK_STREAM]
        let numbers = types.map { Int32($0.rawValue) }
        let isFree = try NetworkNamespace.run(in: namespace) { () throws(ApusError) in
            numbers.allSatisfy { canBind(address, type: $0) }
        }
        guard !isFree else { return }
        throw ApusError(
            .addressInUse,
            "port \(address.port) of \(address.host), for the \(purpose), is in use by another program in the network "
                + "namespace \(namespace)")
    }

    private static func canBind(_ address: HostPort, type: Int32) -> Bool {
        var bound = sockaddr_in()
        bound.sin_family = sa_family_t(AF_INET)
        bound.sin_port = in_port_t(UInt16(truncatingIfNeeded: address.port).bigEndian)
        let descriptor = socket(AF_INET, type | Int32(SOCK_CLOEXEC.rawValue), 0)
        guard descriptor >= 0 else { return false }
        defer { close(descriptor) }
        guard inet_pton(AF_INET, address.host, &bound.sin_addr) == 1 else { return false }
        // As the nodes' listeners are bound: remains of closed connections do not block them.
        var isOn: Int32 = 1
        if type == Int32(SOCK_STREAM.rawValue) {
            setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &isOn, socklen_t(MemoryLayout<Int32>.size))
        }
        return withUnsafePointer(to: &bound) { pointer in
            // SAFETY: a socket address of IPv4, with its length.
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                bind(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size)) == 0
            }
        }
    }
}
