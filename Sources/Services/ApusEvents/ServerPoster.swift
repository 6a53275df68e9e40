import ApusCluster
package import ApusCore
import ApusOutgoing
import ServiceLifecycle
import Synchronization

/// Sends events and raw data to the servers of integrators.
///
/// A host name that an integrator sets may resolve to any address, and may change at any time. A node is inside a
/// network to which integrators have no access. The names of integrators are therefore connected only to public
/// addresses and to those that operators list in `hooks.hosts`. URLs that operators set may lead to any address. The
/// two kinds have separate connections.
///
/// Isolation: any task.
final class ServerPoster: Service {
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

    /// Sends a request once. A name is resolved once, and each address is checked before the node connects to it.
    ///
    /// - Throws: 21002 after the time-out; 21005 if the server cannot be reached or its answer is too long; 12004 if
    ///   all addresses of the URL's host are forbidden.
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

/// A request to a server of an integrator.
package struct ServerPost: Sendable, Hashable {
    /// The same for every repetition of the request.
    package var id: String
    package var url: String
    /// JSON.
    package var body: [UInt8]
    /// The secrets of the signatures; the request has a signature for each.
    package var secrets: [[UInt8]]
    package var timeout: Duration
    /// The longest answer, in bytes; nil: the answer is not read.
    package var answerByteCountMax: Int?
    /// True if an operator set the URL, which may then lead to any address.
    package var isForOperators: Bool

    package init(
        id: String, url: String, body: [UInt8], secrets: [[UInt8]], timeout: Duration, answerByteCountMax: Int?,
        isForOperators: Bool
    ) {
        (self.id, self.url, self.body, self.secrets) = (id, url, body, secrets)
        (self.timeout, self.answerByteCountMax) = (timeout, answerByteCountMax)
        self.isForOperators = isForOperators
    }
}

/// The answer of a server.
package struct ServerAnswer: Sendable, Hashable {
    package var status: Int
    /// Empty unless the status is 2xx.
    package var body: [UInt8]

    package init(status: Int, body: [UInt8]) { (self.status, self.body) = (status, body) }

    /// - Throws: 21005 for a status other than 2xx.
    package func checkTaken() throws(ApusError) {
        guard (200..<300).contains(status) else {
            throw ApusError(.passToServerFailed, "the server answered with the status \(status)")
        }
    }
}
