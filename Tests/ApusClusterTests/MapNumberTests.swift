import ApusCluster
import ApusCore
import ApusTestKit
import ApusWire
import Foundation
import SwiftProtobuf
import Testing

/// The ownership value comes from a store that other nodes write, and backups restore (D4).
@Suite("Numbers in the ownership value (D4)")
struct MapNumberTests {
    private static let cluster = ClusterID(unchecked: "test")

    /// Decides everything that a node can decide on a map that was read; the process must survive it.
    private func decideAll(on bytes: [UInt8]) {
        guard let map = try? ClusterMap(decoding: bytes, revision: 7, cluster: Self.cluster) else { return }
        let names = map.members.map(\.id.name) + [NodeName(unchecked: "new")]
        let nodes = names.map { map.nextIncarnation(of: $0) } + map.members.map(\.id)
        for node in nodes {
            _ = try? map.applying(.join(node, addresses: addresses("new"), weight: .max))
            _ = try? map.applying(.drain(node))
            _ = try? map.applying(.leave(node))
            _ = try? map.applying(.declareDead([node]))
            _ = map.isDrained(node)
        }
        _ = ShardPlacement(of: map)
        let moves = map.members.flatMap { target in
            map.shards.indices.prefix(4).compactMap { index -> ShardMove? in
                let shard = ShardID(UInt16(index))
                return map.owner(of: shard).map {
                    ShardMove(shard: shard, epoch: map[shard].epoch, owner: $0.id, target: target.id)
                }
            }
        }
        _ = try? map.applying(.setStandby(moves))
        _ = try? map.applying(.handOver(moves))
    }

    private static func value() throws -> ClusterMapValue {
        try ClusterMapValue(serializedBytes: try map(join("a"), join("b")).encoded())
    }

    @Test("No number of a member ends a node that reads the map")
    func members() throws {
        var value = try Self.value()
        let variants = WireExtremes.variants(of: try value.members[0].serializedBytes())
        #expect(variants.count > 20)
        for variant in variants {
            guard let member = try? ClusterMember(serializedBytes: variant) else { continue }
            value.members[0] = member
            decideAll(on: try value.serializedBytes())
        }
    }

    @Test("No slot and no epoch of a shard ends a node that reads the map")
    func shards() throws {
        for field in [\ClusterMapValue.owners, \.standbys, \.epochs] {
            let width = field == \ClusterMapValue.epochs ? 4 : 2
            for extreme in WireExtremes.values {
                var value = try Self.value()
                for offset in 0..<width {
                    value[keyPath: field][width + offset] = UInt8(
                        truncatingIfNeeded: extreme >> UInt64((width - 1 - offset) * 8))
                }
                decideAll(on: try value.serializedBytes())
            }
        }
    }

    @Test("A map with more members than slots are given out is refused with 10001")
    func tooMany() async throws {
        var value = try Self.value()
        value.members = (0..<1001).map { index in
            var member = value.members[0]
            member.name = "n\(index)"
            return member
        }
        let bytes: [UInt8] = try value.serializedBytes()
        let refusal = await code { _ = try ClusterMap(decoding: bytes, revision: 1, cluster: Self.cluster) }
        #expect(refusal == .malformed)
    }
}
