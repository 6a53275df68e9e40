import ApusCore
import ApusTransport
import ArgumentParser
import Foundation

/// One end of the transport's measurement: a node with a probe entity.
struct BenchTransportServerCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "transport-server", abstract: "The serving node of `apus-bench transport`.", shouldDisplay: false)

    @Option(help: "The directory with the certificates.") var dir: String
    @Option(help: "Where the calling node listens, to stand by for this one's shards.") var standby: String?

    func run() async throws {
        let node = BenchNode("b", directory: dir, standby: standby == nil ? nil : "a")
        let address = try await node.transport.start()
        if let standby = standby.flatMap({ HostPort($0) }) {
            let peer = NodeID(name: NodeName(unchecked: "a"), incarnation: 1)
            node.transport.setPeers([Peer(id: peer, address: standby)])
        }
        FileHandle.standardOutput.write(Data("\(address)\n".utf8))
        // Lives as long as whoever started it keeps its input open.
        // A thread of its own waits for that, so that none of the node's is taken.
        await withCheckedContinuation { continuation in
            Thread.detachNewThread {
                while readLine() != nil {}
                continuation.resume()
            }
        }
        await node.transport.stop()
    }
}
