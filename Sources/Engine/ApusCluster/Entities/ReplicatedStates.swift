package import ApusCore
package import Logging
import NIOCore
import Synchronization

/// The shards of this node whose entities are replicated to the shards' standbys (D15, D18).
///
/// When this node becomes a shard's owner, the entities start with the states in its copy. If the map names no standby,
/// only this node holds the changes (``ReplicaService/isAlone(_:)``). The states are lost if all nodes end.
///
/// Before the first replicated kind is registered, no shard is opened and no planned move waits for a copy: without
/// replicated entities a map change has no cost here.
///
/// A node may receive a thousand shards with one map, so a task of its own opens them. Shards without states are opened
/// some time later: after the death of a node, its channels move first. A shard is opened at once if an entity of it
/// receives a message, or if a planned move names it.
///
/// Concurrency model: any thread. The `Mutex` guards the shards to open and the known reminders. The states are in the
/// replica's own tables. While a shard is opened, the `Mutex` is held for the scan of its states.
package final class ReplicatedShards: Sendable {
    private struct State {
        /// A replicated kind is registered.
        var isUsed = false
        var owned = OwnedShards()
        /// Shards with states, to open. A task opens them while `isOpening`.
        var unopened: [ShardID: Epoch] = [:]
        var isOpening = false
        /// Shards without states, to open. Another task opens them while `isOpeningEmpty`.
        var empty: [ShardID: Epoch] = [:]
        var isOpeningEmpty = false
        /// Callers that wait until no shard with states is left to open.
        var waiters: [CheckedContinuation<Void, Never>] = []
        var reminders = ReplicatedReminders()
    }

    /// The time from a map to the opening of the gained shards that have no states, and the pause between two parts.
    private static let emptyDelay = Duration.milliseconds(250)
    private static let emptyPause = Duration.milliseconds(5)
    /// The shards without states that are opened in one part.
    private static let emptyCountMax = 64

    private let replicas: ReplicaService
    private let view: ClusterView
    private let logger: Logger
    private let state = Mutex(State())

    package init(replicas: ReplicaService, view: ClusterView, logger: Logger) {
        (self.replicas, self.view, self.logger) = (replicas, view, logger)
    }

    /// The first replicated kind is registered. Opens all shards that this node owns, and from now on every shard that
    /// it gains.
    package func use() {
        let isFirst = state.withLock { state in
            defer { state.isUsed = true }
            return !state.isUsed
        }
        guard isFirst else { return }
        view.observe { [weak self] _, map in self?.mapChanged(map) }
        mapChanged(view.map)
    }

    /// Sets or clears the candidate of a planned move of the shard (``ReplicaService/setCandidate(_:_:)``).
    package func setCandidate(_ shard: ShardID, _ node: NodeID?) {
        let (isUsed, epoch) = state.withLock { state in (state.isUsed, state.empty.removeValue(forKey: shard)) }
        guard isUsed else { return }
        if let epoch { open(shard, epoch) }
        replicas.setCandidate(shard, node)
    }

    /// True if the map may name the node (``ReplicaService/isCaughtUp(_:_:)``).
    package func isCaughtUp(_ shard: ShardID, _ node: NodeID) -> Bool {
        !state.withLock { $0.isUsed } || replicas.isCaughtUp(shard, node)
    }

    private func mapChanged(_ map: ClusterMap) {
        let owned = OwnedShards(of: view.local, in: map)
        let differences = state.withLock { state in
            defer { state.owned = owned }
            return owned.differences(from: state.owned)
        }
        // Most maps change no shard of this node.
        guard !differences.isEmpty else { return }
        let withStates = replicas.shardsWithStates(among: differences.map(\.shard))
        let (isTaskWanted, isEmptyTaskWanted) = state.withLock { state in
            for (shard, _, epoch) in differences {
                let hasStates = withStates.contains(shard)
                state.unopened[shard] = hasStates ? epoch : nil
                state.empty[shard] = hasStates ? nil : epoch
                if epoch == nil { state.reminders.closed(shard) }
            }
            defer {
                state.isOpening = state.isOpening || !state.unopened.isEmpty
                state.isOpeningEmpty = state.isOpeningEmpty || !state.empty.isEmpty
            }
            return (!state.isOpening && !state.unopened.isEmpty, !state.isOpeningEmpty && !state.empty.isEmpty)
        }
        if isTaskWanted { Task { self.openAll() } }
        if isEmptyTaskWanted { Task { await self.openEmpty() } }
    }

    private func openEmpty() async {
        try? await Task.sleep(for: Self.emptyDelay)
        while true {
            let part = state.withLock { state in
                let part = Array(state.empty.prefix(Self.emptyCountMax))
                for (shard, _) in part { state.empty[shard] = nil }
                state.isOpeningEmpty = !part.isEmpty
                return part
            }
            guard !part.isEmpty else { return }
            for (shard, epoch) in part { open(shard, epoch) }
            try? await Task.sleep(for: Self.emptyPause)
        }
    }

    private func openAll() {
        while let (shard, epoch) = state.withLock({ $0.unopened.popFirst() }) { open(shard, epoch) }
        let (waiters, isMore) = state.withLock { state in
            // A newer map may have arrived.
            guard state.unopened.isEmpty else { return ([CheckedContinuation<Void, Never>](), true) }
            defer { state.waiters = [] }
            state.isOpening = false
            return (state.waiters, false)
        }
        if isMore { return openAll() }
        for waiter in waiters { waiter.resume() }
    }

    /// Returns once every shard with states of the maps so far is open.
    private func opened() async {
        await withCheckedContinuation { continuation in
            let isOpen = state.withLock { state in
                guard state.isOpening else { return true }
                state.waiters.append(continuation)
                return false
            }
            if isOpen { continuation.resume() }
        }
    }

    /// Has no effect if the shard is open.
    private func open(_ shard: ShardID, _ epoch: Epoch) {
        guard let promotion = replicas.promote(shard, epoch: epoch) else { return }
        if !promotion.isComplete {
            logger.warning(
                "Changes of a shard may be lost: this node had no complete copy of it",
                metadata: [LogKey.shard: "\(shard)", LogKey.epoch: "\(epoch)"])
        }
        state.withLock { state in
            state.owned[shard] = epoch
            state.reminders.closed(shard)
            guard promotion.entityCount > 0 else { return }
            var cursor: Int? = 0
            while let from = cursor, let page = try? replicas.page(of: shard, epoch: epoch, from: from) {
                state.reminders.opened(shard, page.records)
                cursor = page.next
            }
        }
    }

    // MARK: States

    /// - Throws: 10009 if the shard is not at this node under the epoch.
    fileprivate func load(
        _ address: EntityAddress, epoch: Epoch
    ) throws(ApusError) -> (state: ByteBuffer, isConfirmed: Bool)? {
        let key = ReplicaKey(kind: address.kind, key: address.key)
        do throws(ApusError) {
            return try replicas.load(key, of: address.shard, epoch: epoch)
        } catch {
            // The message arrived before the shard was opened.
            open(address.shard, epoch)
        }
        do throws(ApusError) {
            return try replicas.load(key, of: address.shard, epoch: epoch)
        } catch {
            throw error.code == .staleEpoch ? ApusError(.moved) : error
        }
    }

    fileprivate func change(
        _ address: EntityAddress, epoch: Epoch, _ bytes: [UInt8], _ reminders: [Reminder],
        _ completion: @escaping @Sendable (ApusError?) -> Void
    ) throws(ApusError) {
        let key = ReplicaKey(kind: address.kind, key: address.key)
        try replicas.change(address.shard, epoch: epoch, key, ByteBuffer(bytes: bytes), then: completion)
        state.withLock { state in
            guard state.owned[address.shard] == epoch else { return }
            state.reminders.changed(address, reminders)
        }
    }
}

/// The states of one kind of entity, replicated to their shards' standbys (D15).
package struct ReplicatedStates<Content: EntityContent>: EntityStates {
    private let shards: ReplicatedShards
    private let memory: RequestMemory.Configuration

    package init(_ shards: ReplicatedShards, memory: RequestMemory.Configuration = .init()) {
        (self.shards, self.memory) = (shards, memory)
    }

    package func load(
        _ address: EntityAddress, epoch: Epoch,
        _ completion: @escaping @Sendable (Result<EntitySnapshot<Content>?, ApusError>) -> Void
    ) {
        do throws(ApusError) {
            guard let found = try shards.load(address, epoch: epoch) else { return completion(.success(nil)) }
            let stored = try StoredEntity(
                reading: Array(found.state.readableBytesView), of: address, configuration: memory)
            var snapshot = EntitySnapshot(
                content: try Content(reading: stored.content), memory: stored.memory, reminders: stored.reminders)
            snapshot.isConfirmed = found.isConfirmed
            completion(.success(snapshot))
        } catch {
            completion(.failure(error))
        }
    }

    package func keep(
        _ snapshot: EntitySnapshot<Content>, of address: EntityAddress, epoch: Epoch, earlier: [Reminder],
        _ completion: @escaping @Sendable (KeepOutcome) -> Void
    ) {
        do throws(ApusError) {
            let stored = StoredEntity(
                content: try snapshot.content.encoded(), memory: snapshot.memory, reminders: snapshot.reminders)
            // Captures the version only, so that the completion does not keep the whole state.
            let version = snapshot.version
            try shards.change(address, epoch: epoch, try stored.encoded(), snapshot.reminders) { error in
                completion(KeepOutcome(replicated: error, after: version))
            }
        } catch {
            completion(KeepOutcome(refused: error))
        }
    }
}

extension ReplicatedShards: ReminderSource {
    /// Reads all reminders of this node's shards, once those are open.
    package func dueReminders(
        after cursor: ReminderStateMachine.Cursor?, upTo: Int64, limit: Int
    ) async throws(ApusError) -> (reminders: [Reminder], isLast: Bool) {
        await opened()
        return state.withLock { $0.reminders.due(after: cursor, upTo: upTo, limit: limit) }
    }
}
