package import ApusCore
package import ApusStorage
import Synchronization

/// The claims of the shards of this node whose entities are recorded (D15, D16).
///
/// A shard is claimed under its epoch before its first state is read. A former owner can no longer change what is read
/// afterwards (``ShardClaims``).
///
/// Concurrency model: any thread. The `Mutex` guards the set of claimed shards.
package final class RecordedShards: Sendable {
    private struct Observer: Sendable {
        var claimed: @Sendable (ShardID) -> Void
    }

    let store: any RecordStore
    private let writer: String
    private let claimed = Mutex<[ShardID: Epoch]>([:])
    private let observer = Mutex<Observer?>(nil)

    /// - Parameter local: this incarnation of this node, which its writes carry.
    package init(store: any RecordStore, local: NodeID) {
        self.store = store
        writer = "\(local)"
    }

    /// Calls the observer after each claim, before anything reads a state of the shard. There is one observer.
    func observeClaims(_ observer: @escaping @Sendable (ShardID) -> Void) {
        self.observer.withLock { $0 = Observer(claimed: observer) }
    }

    func fence(_ epoch: Epoch) -> RecordFence { RecordFence(epoch: epoch, writer: writer) }

    /// Returns once the shard is claimed under the epoch.
    ///
    /// - Throws: 10009 if a later owner has claimed it; 10007 and 10021 if the store cannot take the claim now.
    func claim(_ shard: ShardID, _ epoch: Epoch) async throws(ApusError) {
        guard claimed.withLock({ $0[shard] != epoch }) else { return }
        // Two concurrent callers both claim. A second claim has no effect.
        if let error = await ShardClaims.claim([shard: epoch], writer: writer, in: store)[shard] {
            throw error.code == .staleEpoch ? ApusError(.moved) : error
        }
        observer.withLock(\.self)?.claimed(shard)
        claimed.withLock { $0[shard] = epoch }
    }
}

/// The states of one kind of entity as records (D15, D16).
package struct RecordedStates<Content: EntityContentMessage>: EntityStates {
    private let shards: RecordedShards
    private let collection: EntityCollection<Content>
    private let memory: RequestMemory.Configuration

    package init(
        _ shards: RecordedShards, _ collection: EntityCollection<Content>, memory: RequestMemory.Configuration = .init()
    ) {
        (self.shards, self.collection, self.memory) = (shards, collection, memory)
    }

    package func load(
        _ address: EntityAddress, epoch: Epoch,
        _ completion: @escaping @Sendable (Result<EntitySnapshot<Content>?, ApusError>) -> Void
    ) {
        Task {
            do throws(ApusError) {
                try await shards.claim(address.shard, epoch)
                let stored = try await collection.load(address, from: shards.store, memory: memory)
                completion(
                    .success(
                        stored.map {
                            EntitySnapshot(
                                content: $0.content, memory: $0.memory, reminders: $0.reminders, version: $0.version)
                        }))
            } catch {
                completion(.failure(error))
            }
        }
    }

    package func keep(
        _ snapshot: EntitySnapshot<Content>, of address: EntityAddress, epoch: Epoch, earlier: [Reminder],
        _ completion: @escaping @Sendable (KeepOutcome) -> Void
    ) {
        do throws(ApusError) {
            let step = try collection.step(snapshot, of: address, fence: shards.fence(epoch), earlier: earlier)
            shards.store.commit([step]) { outcomes in
                completion(KeepOutcome(recorded: outcomes.first ?? .failure(ApusError(.internalFailure))))
            }
        } catch {
            completion(.lost(error))
        }
    }
}
