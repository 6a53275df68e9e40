import ApusCluster
import ApusCore
import ApusGateway
import Logging
import Synchronization

/// The hand-over that an operator ordered: the shards go first, then the clients; the node stays until it is stopped.
///
/// It takes longer than a request may, so who orders it is told that it has begun, and sees its end in the status.
///
/// Isolation: any thread. The `Mutex` guards whether a hand-over runs.
final class NodeDrain: Sendable {
    private let cluster: ClusterService
    private let gateway = Mutex<Gateway?>(nil)
    private let log: Logger
    private let running = Mutex(false)

    init(_ cluster: ClusterService, log: Logger) { (self.cluster, self.log) = (cluster, log) }

    /// Gives whose clients are sent away; made after what orders the hand-over.
    func connect(_ gateway: Gateway) { self.gateway.withLock { $0 = gateway } }

    /// A hand-over has begun and not ended.
    var isRunning: Bool { running.withLock { $0 } }

    /// Returns when the map says that this node is drained; at once where a hand-over runs already.
    ///
    /// - Throws: the errors of ``ClusterService/propose(_:)``.
    func begin() async throws(ApusError) {
        let isNew = running.withLock { isRunning in
            defer { isRunning = true }
            return !isRunning
        }
        guard isNew else { return }
        do throws(ApusError) {
            try await cluster.beginDraining()
        } catch {
            running.withLock { $0 = false }
            throw error
        }
        // One at a time, until the node has no clients.
        Task { await self.finish() }
    }

    private func finish() async {
        do throws(ApusError) {
            try await cluster.waitUntilDrained()
            await gateway.withLock { $0 }?.sendClientsAway()
        } catch {
            log.warning("This node could not hand over all it has; drain it again", metadata: Logger.facts(of: error))
        }
        running.withLock { $0 = false }
    }
}
