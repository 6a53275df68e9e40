import ApusCore
import ApusTransport
import ArgumentParser
import Foundation

/// One end of the transport's measurement: a node with a probe entity.
struct BenchTransportServerCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "transport-server", abstract: "The serving node of `bench transport`.", shouldDisplay: false)

    @Option(help: "The directory with the certificates.") var dir: String

    func run() async throws {
        let node = BenchNode("b", directory: dir)
        let address = try await node.transport.start()
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
