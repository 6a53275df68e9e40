import ApusCluster
import ApusCore
import ApusGateway
import ApusHTTP
import Logging
import Synchronization

/// The drain of a node by an operator. The shards move first, then the clients. The node stays until it is stopped, and
/// gets shards again when it is undrained or started again.
/// A drain takes longer than a request may. The request's answer says that it has begun, and the status shows its end.
/// Isolation: any thread. The `Mutex` guards the drain that is in progress.
final class NodeDrain: Sendable {
    private struct Progress {
        var isRunning = false
        /// Counts drains and their ends, so that a drain that was ended does not mark the next one as done.
        var number: UInt64 = 0
        var task: Task<Void, Never>?
    }

    private let cluster: ClusterService
    private let gateway = Mutex<Gateway?>(nil)
    private let http = Mutex<HTTPListener?>(nil)
    private let log: Logger
    private let progress = Mutex(Progress())

    init(_ cluster: ClusterService, log: Logger) { (self.cluster, self.log) = (cluster, log) }

    /// Sets what sends its clients away. Both are created later than this object.
    func connect(_ gateway: Gateway, _ http: HTTPListener) {
        self.gateway.withLock { $0 = gateway }
        self.http.withLock { $0 = http }
    }

    /// True while a drain is in progress.
    var isRunning: Bool { progress.withLock { $0.isRunning } }

    /// Begins a drain. Returns once the map shows that this node is draining; at once if a drain is in progress.
    ///
    /// - Throws: the errors of ``ClusterService/propose(_:)``.
    func begin() async throws(ApusError) {
        let new = progress.withLock { progress -> UInt64? in
            guard !progress.isRunning else { return nil }
            progress.isRunning = true
            progress.number += 1
            return progress.number
        }
        guard let number = new else { return }
        do throws(ApusError) {
            try await cluster.beginDraining()
        } catch {
            ended(number)
            throw error
        }
        // At most one runs at a time, until the clients have left or the wait for them times out.
        let task = Task { await self.finish(number) }
        progress.withLock { progress in
            if progress.number == number, progress.isRunning { progress.task = task }
        }
    }

    /// Ends a drain, in progress or done. Returns once the map shows that this node accepts shards; at once if it does
    /// already. Clients that were sent away stay where they are.
    ///
    /// - Throws: the errors of ``ClusterService/undrain()``.
    func end() async throws(ApusError) {
        try await cluster.undrain()
        let task = progress.withLock { progress -> Task<Void, Never>? in
            defer { (progress.isRunning, progress.task) = (false, nil) }
            progress.number += 1
            return progress.task
        }
        task?.cancel()
        gateway.withLock { $0 }?.keepClients()
    }

    private func finish(_ number: UInt64) async {
        do throws(ApusError) {
            try await cluster.waitUntilDrained()
            let (gateway, http) = (gateway.withLock { $0 }, http.withLock { $0 })
            async let pages: Void? = http?.sendClientsAway()
            await gateway?.sendClientsAway()
            _ = await pages
        } catch {
            if error.code == .cancelled {
                log.info("The drain was ended before it was complete")
            } else {
                log.warning("The drain is not complete; drain the node again", metadata: Logger.facts(of: error))
            }
        }
        ended(number)
    }

    private func ended(_ number: UInt64) {
        progress.withLock { progress in
            if progress.number == number { (progress.isRunning, progress.task) = (false, nil) }
        }
    }
}
