package import ApusCore
package import ApusWire
import Foundation
import NIOCore
import SwiftProtobuf

extension EntityRegistry {
    /// How long calls in progress may take before a shard's states are read. Shorter than the hand-over's own deadline.
    private static let captureTimeout = Duration.milliseconds(200)

    /// Holds a shard's entities and reads their states. Throws 10005 if calls do not end in time.
    package func takeStates(_ shard: ShardID) async throws(ApusError) -> [ClusterEntityState] {
        hold(shard)
        return try await capture(shard, timeout: Self.captureTimeout).map { address, state in
            .with {
                $0.kind = UInt32(address.kind.rawValue)
                $0.key = address.key
                $0.state = Data(state.readableBytesView)
            }
        }
    }

    /// Keeps the states of a shard that this node is about to own. Throws 10001 for an invalid state.
    package func giveStates(_ shard: ShardID, _ epoch: Epoch, _ part: ClusterHooks.StatePart) throws(ApusError) {
        for entity in part.entities {
            guard let kind = UInt8(exactly: entity.kind), (1...63).contains(entity.key.utf8.count) else {
                throw ApusError(.malformed, "an entity's state is not valid")
            }
            let address = EntityAddress(kind: EntityKind(rawValue: kind), key: entity.key, shard: shard)
            try prepare(address, state: ByteBuffer(bytes: entity.state), successorEpoch: epoch)
        }
    }
}
