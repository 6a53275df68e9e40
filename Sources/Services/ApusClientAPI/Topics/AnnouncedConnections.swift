package import ApusCluster
package import ApusCore
import Synchronization

/// The connections of a node that an entity sends something to, such as the connections of a device that take its
/// commands. Each is announced to its entity, and again when the entity has another owner.
///
/// Concurrency model: any thread. A `Mutex` guards the table; ``run()`` announces again.
package final class AnnouncedConnections<Key: Sendable>: Sendable {
    package struct Entry: Sendable {
        package let connection: any ClientConnection
        package let key: Key
        fileprivate let shard: ShardID
    }

    private struct State {
        /// By the number under which the entity has the connection.
        var entries: [UInt64: Entry] = [:]
        var numbers: [ObjectIdentifier: UInt64] = [:]
        var epochs: [Epoch] = []
    }

    private let shard: @Sendable (Key) -> ShardID
    private let announce: @Sendable (UInt64, Key, Duration) async throws(ApusError) -> Void
    private let withdraw: @Sendable (UInt64, Key) -> Void
    private let state = Mutex(State())
    /// Numbers of connections to announce again. Bounded by the connections: each is in it a few times at most.
    private let work = WorkQueue<UInt64>(countMax: nil)

    private static var retryDelay: Duration { .milliseconds(300) }
    private static var announceTimeout: Duration { .seconds(3) }
    /// Connections that are announced at once, such as after the death of an owner.
    private static var announcingMax: Int { 64 }

    /// - Parameters:
    ///   - shard: that of the entity.
    ///   - announce: asks the entity to take the connection with this number, within a time.
    ///   - withdraw: notifies the entity that the connection with this number has ended. The notice may be lost.
    package init(
        view: ClusterView, shard: @escaping @Sendable (Key) -> ShardID,
        announce: @escaping @Sendable (UInt64, Key, Duration) async throws(ApusError) -> Void,
        withdraw: @escaping @Sendable (UInt64, Key) -> Void
    ) {
        (self.shard, self.announce, self.withdraw) = (shard, announce, withdraw)
        let map = view.map
        state.withLock { $0.epochs = map.shards.map(\.epoch) }
        view.observe { [weak self] _, map in self?.mapChanged(map) }
    }

    package var count: Int { state.withLock { $0.entries.count } }

    /// The connection with a number; nil if it has ended.
    package func entry(_ number: UInt64) -> Entry? { state.withLock { $0.entries[number] } }

    /// The number of a connection; nil if it does not listen.
    package func number(of connection: any ClientConnection) -> UInt64? {
        state.withLock { $0.numbers[ObjectIdentifier(connection)] }
    }

    /// The connection listens from now on. If the announcement fails, it is repeated, unless the entity has no room for
    /// the connection or the connection has ended.
    ///
    /// - Throws: as the announcement.
    package func listen(_ connection: any ClientConnection, _ key: Key, timeout: Duration) async throws(ApusError) {
        leave(connection)
        let number = UInt64.random(in: 1...(.max))
        let entry = Entry(connection: connection, key: key, shard: shard(key))
        state.withLock { state in
            state.entries[number] = entry
            state.numbers[ObjectIdentifier(connection)] = number
        }
        do throws(ApusError) {
            try await announce(number, key, min(timeout, Self.announceTimeout))
        } catch {
            // A request is carried out to its end when its connection ends.
            if error.code == .overloaded || connection.isClosed { leave(connection) } else { work.add(number) }
            throw error
        }
        // A connection that ended while its request was on its way.
        if connection.isClosed { leave(connection) }
    }

    /// The connection no longer listens, or has ended.
    package func leave(_ connection: any ClientConnection) {
        let left = state.withLock { state -> (UInt64, Key)? in
            guard let number = state.numbers.removeValue(forKey: ObjectIdentifier(connection)),
                let entry = state.entries.removeValue(forKey: number)
            else { return nil }
            return (number, entry.key)
        }
        if let (number, key) = left { withdraw(number, key) }
    }

    private func mapChanged(_ map: ClusterMap) {
        let epochs = map.shards.map(\.epoch)
        let moved = state.withLock { state in
            defer { state.epochs = epochs }
            guard state.epochs != epochs else { return [UInt64]() }
            return state.entries.filter { entry in
                let shard = Int(entry.value.shard.rawValue)
                return state.epochs[shard] != epochs[shard]
            }.map(\.key)
        }
        for number in moved { work.add(number) }
    }

    /// Announces connections to new owners, until the task is cancelled.
    package func run() async { await work.run(atMost: Self.announcingMax) { await self.announceAgain($0) } }

    private func announceAgain(_ number: UInt64) async {
        guard let found = entry(number) else { return }
        guard !found.connection.isClosed else { return leave(found.connection) }
        do throws(ApusError) {
            try await announce(number, found.key, Self.announceTimeout)
        } catch {
            work.add(number)
            try? await Task.sleep(for: Self.retryDelay)
        }
    }
}
