package import ApusCore
package import ApusTransport
import ApusWire
import Logging
package import NIOCore
import Synchronization

/// Operations for operators, other parts of the node, and peers.
extension ClusterService {
    /// Hands over all shards of this node. It remains a member that accepts no new ones.
    ///
    /// Returns when the node holds nothing, or at once if no other node is up to take its shards.
    ///
    /// - Throws: 10005 after ``ClusterConfiguration/drainTimeout``, and the errors of ``propose(_:)``.
    package func drain() async throws(ApusError) {
        try await beginDraining()
        try await waitUntilDrained()
    }

    /// As ``drain()``, but returns as soon as the map shows this node as draining.
    ///
    /// - Throws: the errors of ``propose(_:)``.
    package func beginDraining() async throws(ApusError) { try await propose(.drain(identity)) }

    /// Returns when this draining node holds nothing, or at once if no other node accepts its shards.
    ///
    /// - Throws: 10005 after ``ClusterConfiguration/drainTimeout``, 10006 if the drain is ended (``undrain()``).
    package func waitUntilDrained() async throws(ApusError) {
        let isOver = await wait(for: configuration.drainTimeout) { map in
            map.isDrained(self.identity) || !map.members.contains(where: \.acceptsShards) || self.isUp(in: map)
        }
        guard !isUp(in: view.map) else { throw ApusError(.cancelled, "the drain was ended") }
        guard isOver else { throw ApusError(.deadlineExceeded, "not all shards could be handed over in time") }
    }

    /// Ends a drain of this node: it accepts shards again, and the others move its share to it. Does nothing if the
    /// node is not draining.
    ///
    /// - Throws: 21025 once this node leaves, and the errors of ``propose(_:)``.
    package func undrain() async throws(ApusError) { try await propose(.undrain(identity)) }

    private func isUp(in map: ClusterMap) -> Bool {
        map.members.contains { $0.id == identity && $0.state == .up }
    }

    /// Drains as far as possible, and leaves the cluster. Remaining shards go to the standbys.
    package func leave() async {
        thread.loop.execute { self.state.value.isLeaving = true }
        do throws(ApusError) {
            try await drain()
        } catch {
            logger.warning("This node leaves before it was drained", metadata: Logger.facts(of: error))
        }
        do throws(ApusError) {
            try await propose(.leave(identity))
            logger.notice("This node left the cluster")
        } catch {
            logger.warning("This node could not leave: peers will declare it dead", metadata: Logger.facts(of: error))
        }
    }

    /// Returns when every shard has its owner and standbys at their place, in this node's view.
    ///
    /// - Throws: 10005 after `timeout`.
    package func waitUntilStable(timeout: Duration) async throws(ApusError) {
        let isStable = await wait(for: timeout) { map in
            let placement = ShardPlacement(of: map)
            return map.isAlive(self.identity)
                && map.shards.indices.allSatisfy { index in
                    !placement.isMisplaced(index, in: map)
                }
        }
        guard isStable else { throw ApusError(.deadlineExceeded, "the cluster map did not become stable in time") }
    }

    /// This node's view of the cluster.
    package func status() async -> ClusterStatus {
        let heartbeats = heartbeats.withLock { $0 }
        let peers = await heartbeats?.read { $0.machine.peerHealth }
        let facts = try? await thread.loop.submit {
            let state = self.state.value
            return (state.ownership.store, state.handover.movingCount, state.handover.misplacedCount)
        }.get()
        return ClusterStatus(
            identity: identity, map: view.map, store: facts?.0 ?? .unreadable(ApusError(.shuttingDown)),
            movingCount: facts?.1 ?? 0,
            misplacedCount: facts?.2 ?? 0, peers: peers ?? [])
    }

    /// Checks each newer map until one fits. Returns false if none came in time.
    private func wait(for timeout: Duration, until fits: (ClusterMap) -> Bool) async -> Bool {
        let deadline = MonotonicTime.now() + timeout
        var revision: UInt64?
        while MonotonicTime.now() < deadline, !Task.isCancelled {
            let map = view.map
            if map.revision != revision {
                revision = map.revision
                if fits(map) { return true }
            }
            try? await Task.sleep(for: .milliseconds(10))
        }
        return false
    }

    // MARK: From the transport

    /// Handles an event of the transport. Called on any thread; does not block.
    package func received(_ event: TransportEvent) {
        let input: MembershipStateMachine.Input
        switch event {
        case .linkUp(let peer, _): input = .linkUp(peer)
        case .linkLost(let peer, _): input = .linkLost(peer)
        case .connectRefused(let peer): input = .connectRefused(peer)
        case .heard(let peer): input = .heard(peer)
        case .rejected, .refusedAsRevoked: return
        case .ownName(let other, let address): return found(duplicate: other, at: address)
        case .revoked(let peer):
            // The node counts as silent from now on: its heartbeats are sealed with the cluster's key, which a revoked
            // certificate does not take away.
            heartbeats.withLock { $0 }?.setRevoked(peer, true)
            return
        case .listening(let isOpen):
            return hooks.condition(
                .transportClosed,
                isOpen ? nil : "the listener for other nodes is closed and cannot open; check what uses its port")
        }
        let heartbeats = heartbeats.withLock { $0 }
        if case .linkUp(let peer) = input { heartbeats?.setRevoked(peer, false) }
        heartbeats?.perform { driver, now in driver.handle(input, now: now) }
    }

    /// Another process has this node's name. It tries to join again and again, so the condition ends without it.
    private func found(duplicate other: NodeID, at address: String) {
        guard let own = view.map.member(named: identity.name), own.id == identity, own.state.isAlive else { return }
        hooks.condition(
            .duplicateNodeWaits,
            "a process at \(address) has the name and certificate of this node, which is up as \(identity) at "
                + "\(own.addresses.transport); the other one, \(other), waits; give it a name, a certificate and a "
                + "data directory of its own, or stop it")
        let until = MonotonicTime.now() + configuration.duplicateHold
        thread.loop.execute { self.state.value.duplicateUntil = until }
    }

    /// Seals heartbeats with these keys, and accepts them, from now on.
    package func use(_ new: HeartbeatSeal) {
        seal.withLock { $0 = new }
        heartbeats.withLock { $0 }?.use(new)
    }

    /// Handles a request with one of the methods ``ClusterMethod/all`` that is not of ``ClusterMethod/replication``.
    /// Called on the connection's event loop.
    package func received(_ request: InboundRequest) {
        guard request.method == ClusterMethod.mapChanged else { return request.fail(ApusError(.methodUnknown)) }
        noteMapChanged(request.payload)
    }

    /// A peer reports that the map changed.
    package func noteMapChanged(_ payload: ByteBuffer) {
        guard let message = try? ClusterMapChanged(bounded: payload),
            message.revision > view.map.revision
        else { return }
        thread.loop.execute { self.handle(ownership: .reported(message.revision)) }
    }
}
