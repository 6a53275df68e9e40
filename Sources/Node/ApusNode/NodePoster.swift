import ApusCluster
import ApusCore
package import ApusEvents
import ApusTraversal
import ApusWebhooks
import ServiceLifecycle
import Synchronization

/// Sends events and raw data to the servers of integrators.
///
/// A name that an integrator has set may lead to any address, and be changed at any time. It is connected to public
/// addresses only, and to those that operators have named in `hooks.hosts`: a node is inside a network that integrators
/// are outside of. URLs that operators have set lead anywhere. Connections of the two are kept apart.
///
/// Isolation: any task.
final class NodePoster: ServerPoster, Service {
    private struct Posters: Sendable {
        let operators: WebhookPoster
        let integrators: WebhookPoster
    }

    private let configuration: EventConfiguration
    private let clock: ClusterClock
    private let posters = Mutex<Posters?>(nil)

    init(_ configuration: EventConfiguration, clock: ClusterClock) {
        (self.configuration, self.clock) = (configuration, clock)
    }

    func run() async throws {
        let addresses = HookAddresses(configuration)
        let posters = Posters(
            operators: try WebhookPoster(
                authorityFile: configuration.authorityFile, connectionsMax: configuration.sendingMax),
            integrators: try WebhookPoster(
                authorityFile: configuration.authorityFile, connectionsMax: configuration.sendingMax,
                mayConnect: { addresses.allow($0) }))
        self.posters.withLock { $0 = posters }
        try? await gracefulShutdown()
        self.posters.withLock { $0 = nil }
        await posters.operators.shutdown()
        await posters.integrators.shutdown()
    }

    func post(_ post: ServerPost) async throws(ApusError) -> ServerAnswer {
        guard let posters = posters.withLock(\.self) else { throw ApusError(.passToServerFailed, "the node stops") }
        let poster = post.isForOperators ? posters.operators : posters.integrators
        do throws(ApusError) {
            let answer = try await poster.post(
                post.body, id: post.id, to: post.url, secrets: post.secrets, timeout: post.timeout,
                wallSeconds: clock.wallSeconds(), answerByteCountMax: post.answerByteCountMax)
            return ServerAnswer(status: answer.status, body: answer.body)
        } catch {
            switch error.code {
            case .answerTimedOut: throw error
            case .notAllowed: throw ApusError(.notAllowed, "\(error.message) (hooks.hosts)")
            case .frameTooLarge: throw ApusError(.passToServerFailed, error.message)
            default: throw ApusError(.passToServerFailed, "the server did not answer: \(error.message.prefix(200))")
            }
        }
    }
}

/// The addresses to which hooks of integrators may lead.
package struct HookAddresses: Sendable {
    /// All special ranges are closed.
    private let policy = PeerPolicy()
    /// Those that the operators have named.
    private let named: Set<TransportAddress>
    /// The networks that they have named.
    private let networks: [PeerRule]

    package init(_ configuration: EventConfiguration) {
        named = Set(
            configuration.hosts.flatMap { host in
                host.lowercased() == "localhost"
                    ? ["127.0.0.1", "::1"].compactMap { TransportAddress($0, port: 0) }
                    : [TransportAddress(host, port: 0)].compactMap(\.self)
            })
        networks = configuration.hosts.compactMap { $0.contains("/") ? PeerRule($0) : nil }
    }

    /// - Parameter bytes: 4 or 16.
    package func allow(_ bytes: [UInt8]) -> Bool {
        guard let address = TransportAddress(bytes: bytes, port: 0) else { return false }
        return named.contains(address) || networks.contains { $0.contains(host: address) }
            || policy.refusal(ofHost: address) == nil
    }
}
