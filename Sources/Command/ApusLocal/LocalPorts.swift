package import ApusCore
import NIOCore
import NIOPosix

/// Checks that a node's addresses are free before the node is started, so that an error can name the one in use.
package enum LocalPorts {
    /// How long to wait for a port. After a process was killed, its threads hold its sockets for a moment after the
    /// process has disappeared.
    private static let endingTimeout = Duration.seconds(3)

    /// Checks every address of a node over TCP, and over UDP if the node uses it.
    /// - Throws: 10019 with the address and its purpose.
    package static func requireFree(_ node: StateDirectory.Node) async throws(ApusError) {
        for (purpose, text) in [
            ("node links", node.transport), ("devices and apps", node.clients), ("HTTP", node.http),
            ("relay", node.relay ?? ""),
        ] {
            guard let address = HostPort(text) else { continue }
            let deadline = MonotonicTime.now() + endingTimeout
            while true {
                do throws(ApusError) {
                    try await requireFree(address, purpose: purpose, node: node.name)
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
}
