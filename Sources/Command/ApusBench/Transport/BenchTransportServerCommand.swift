import ApusCore
import ApusTransport
import ArgumentParser
import Foundation

/// The serving side of the transport benchmark: a node with a probe entity.
struct BenchTransportServerCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "transport-server", abstract: "Run the node that `transport` calls.", shouldDisplay: false)

    @Option(help: "Read the certificates from this directory.") var dir: String
    @Option(help: "Use the calling node at HOST:PORT as the standby.") var standby: String?

    func run() async throws {
        let node = BenchNode("b", directory: dir, standby: standby == nil ? nil : "a")
        let address = try await node.transport.start()
        if let standby = standby.flatMap({ HostPort($0) }) {
            let peer = NodeID(name: NodeName(unchecked: "a"), incarnation: 1)
            node.transport.setPeers([Peer(id: peer, address: standby)])
        }
        FileHandle.standardOutput.write(Data("\(address)\n".utf8))
        // The node runs until its parent closes its standard input. A separate thread waits for that, so that none of
        // the node's threads is blocked.
        await withCheckedContinuation { continuation in
            Thread.detachNewThread {
                while readLine() != nil {}
                continuation.resume()
            }
        }
        await node.transport.stop()
    }
}
