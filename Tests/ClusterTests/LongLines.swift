import ApusCore
import NIOCore
import NIOPosix

/// Three nodes whose clients have a long line each.
final class LongLines {
    let cluster: Cluster
    let ports: [Int]
    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    private var proxies: [DelayProxy] = []

    private init(base: Int) async throws {
        cluster = try Cluster(configuredNodes: 3, basePort: base, advertised: { base + ($0 - 1) * 10 + 5 })
        ports = (0..<3).map { base + $0 * 10 + 5 }
        do {
            for port in ports {
                proxies.append(try await DelayProxy(port: port, target: port - 4, group: group))
            }
        } catch {
            cluster.down()
            throw error
        }
    }

    func set(_ milliseconds: Int) {
        for proxy in proxies { proxy.set(DelayProxy.Line(roundTrip: .milliseconds(Int64(milliseconds)))) }
    }

    func pair() async throws -> (bell: CallClient, app: CallClient) {
        let bell = try await CallClient(cluster, 1, device: "bell", ports: ports).ready()
        let phone = Array(ports[1...]) + [ports[0]]
        return (bell, try await CallClient(cluster, 2, access: "phone", ports: phone).ready())
    }

    private func end() async {
        for proxy in proxies { try? await proxy.close() }
        cluster.down()
        try? await group.shutdownGracefully()
    }

    static func with(base: Int, _ body: (LongLines) async throws -> Void) async throws {
        let lines = try await LongLines(base: base)
        do {
            try await body(lines)
        } catch {
            await lines.end()
            throw error
        }
        await lines.end()
    }
}
