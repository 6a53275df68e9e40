import ApusCluster
import ApusCore
import ApusGateway
import Logging
import Synchronization

/// The drain of a node by an operator. The shards move first, then the clients; the node stays until it is stopped.
/// A drain takes longer than a request may. The request's answer says that it has begun, and the status shows its end.
/// Isolation: any thread. The `Mutex` guards the flag that shows whether a drain is in progress.
final class NodeDrain: Sendable {
    private let cluster: ClusterService
    private let gateway = Mutex<Gateway?>(nil)
    private let log: Logger
    private let running = Mutex(false)

    init(_ cluster: ClusterService, log: Logger) { (self.cluster, self.log) = (cluster, log) }

    /// Sets the gateway whose clients are sent away. The gateway is created later than this object.
    func connect(_ gateway: Gateway) { self.gateway.withLock { $0 = gateway } }

    /// True while a drain is in progress.
    var isRunning: Bool { running.withLock { $0 } }

    /// Begins a drain. Returns once the map shows that this node is draining; at once if a drain is in progress.
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
        // At most one runs at a time, until the clients have left or the wait for them times out.
        Task { await self.finish() }
    }

    private func finish() async {
        do throws(ApusError) {
            try await cluster.waitUntilDrained()
            await gateway.withLock { $0 }?.sendClientsAway()
        } catch {
            log.warning("The drain is not complete; drain the node again", metadata: Logger.facts(of: error))
        }
        running.withLock { $0 = false }
    }
}
