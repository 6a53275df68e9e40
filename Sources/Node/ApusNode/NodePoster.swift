import ApusCluster
import ApusCore
import ApusEvents
import ApusWebhooks
import ServiceLifecycle
import Synchronization

/// Sends events and raw data to the servers of integrators.
///
/// Isolation: any task.
final class NodePoster: ServerPoster, Service {
    private let configuration: EventConfiguration
    private let clock: ClusterClock
    private let poster = Mutex<WebhookPoster?>(nil)

    init(_ configuration: EventConfiguration, clock: ClusterClock) {
        (self.configuration, self.clock) = (configuration, clock)
    }

    func run() async throws {
        let client = try WebhookPoster(
            authorityFile: configuration.authorityFile, connectionsMax: configuration.sendingMax,
            connectTimeout: configuration.timeout)
        poster.withLock { $0 = client }
        try? await gracefulShutdown()
        poster.withLock { $0 = nil }
        await client.shutdown()
    }

    func post(_ post: ServerPost) async throws(ApusError) -> [UInt8] {
        guard let poster = poster.withLock(\.self) else { throw ApusError(.passToServerFailed, "the node stops") }
        let answer: (status: Int, body: [UInt8])
        do throws(ApusError) {
            answer = try await poster.post(
                post.body, id: post.id, to: post.url, secrets: post.secrets, timeout: post.timeout,
                wallSeconds: clock.wallSeconds(), answerByteCountMax: post.answerByteCountMax)
        } catch {
            switch error.code {
            case .answerTimedOut: throw error
            case .frameTooLarge: throw ApusError(.passToServerFailed, error.message)
            default: throw ApusError(.passToServerFailed, "the server did not answer: \(error.message.prefix(200))")
            }
        }
        guard (200..<300).contains(answer.status) else {
            throw ApusError(.passToServerFailed, "the server answered with the status \(answer.status)")
        }
        return answer.body
    }
}
