import ApusCluster
import ApusCore
import ApusTestKit
import ApusWire
import SwiftProtobuf
import Testing

/// What the map says of how a shard's standby and owner were named (D5, D18).
@Suite("Named for want of another, or by a planned move (D5, D18)")
struct ShardNamingTests {
    private static let cluster = ClusterID(unchecked: "test")

    /// Three nodes, with everything where it should be, and as if planned moves had brought all of it there.
    private static func atRest() throws -> ClusterMap {
        var map = try map(join("a"), join("b"), join("c")).atRest()
        for index in map.shards.indices { (map.shards[index].standbyNamedIn, map.shards[index].ownerNamedIn) = (0, 0) }
        return map
    }

    /// A shard of a with standby b.
    private static func shard(in map: ClusterMap) throws -> ShardID {
        let index = map.shards.indices.first {
            let shard = ShardID(UInt16($0))
            return map.owner(of: shard)?.id == node("a") && map.standby(of: shard)?.id == node("b")
        }
        return ShardID(UInt16(try #require(index)))
    }

    @Test("A node that joins stands by for want of another, in the first revision that the map can have")
    func joins() throws {
        let first = try map(join("a"))
        #expect(first.shards.allSatisfy { $0.ownerNamedIn == 1 && $0.standbyNamedIn == 0 })
        let second = try first.after(join("b"))
        #expect(second.revision == 2)
        #expect(second.shards.allSatisfy { $0.ownerNamedIn == 1 && $0.standbyNamedIn == 2 })
    }

    @Test("A planned move names a standby that has everything, and so does a hand-over")
    func moves() throws {
        let before = try map(join("a"), join("b"), join("c"))
        let shard = ShardID(7)
        #expect(before.standby(of: shard)?.id == node("b") && before[shard].standbyNamedIn == 2)
        let move = ShardMove(shard: shard, epoch: 1, owner: node("a"), target: node("c"))
        let moved = try before.after(.setStandby([move]))
        #expect(moved.standby(of: shard)?.id == node("c") && moved[shard].standbyNamedIn == 0)
        let handedOver = try moved.after(.handOver([move]))
        #expect(handedOver.owner(of: shard)?.id == node("c") && handedOver.standby(of: shard)?.id == node("a"))
        #expect(handedOver[shard].ownerNamedIn == 0 && handedOver[shard].standbyNamedIn == 0)
        // One that was named for want of another, and has caught up, is handed over to as well.
        let other = ShardMove(shard: shard, epoch: 1, owner: node("a"), target: node("b"))
        let direct = try before.after(.handOver([other]))
        #expect(direct.owner(of: shard)?.id == node("b") && direct[shard].ownerNamedIn == 0)
    }

    @Test("A move to who stands by already does not change how that was named")
    func sameStandby() throws {
        let before = try map(join("a"), join("b"))
        let move = ShardMove(shard: ShardID(7), epoch: 1, owner: node("a"), target: node("b"))
        #expect(try before.applying(.setStandby([move])) == nil)
        #expect(before[ShardID(7)].standbyNamedIn == 2)
    }

    @Test("After a standby's death the next one is named for want of another")
    func standbyDies() throws {
        let before = try Self.atRest()
        let shard = try Self.shard(in: before)
        #expect(before[shard].standbyNamedIn == 0 && before[shard].ownerNamedIn == 0)
        let after = try before.after(.declareDead([node("b")]))
        #expect(after.standby(of: shard)?.id == node("c") && after[shard].epoch == before[shard].epoch)
        #expect(after[shard].standbyNamedIn == after.revision && after[shard].ownerNamedIn == 0)
    }

    @Test("After an owner's death the map says of the new one how it was named as the standby")
    func ownerDies() throws {
        let before = try Self.atRest()
        let shard = try Self.shard(in: before)
        let planned = try before.after(.declareDead([node("a")]))
        #expect(planned.owner(of: shard)?.id == node("b") && planned[shard].ownerNamedIn == 0)
        #expect(planned.standby(of: shard)?.id == node("c") && planned[shard].standbyNamedIn == planned.revision)
        let named = try before.after(.declareDead([node("b")]))
        let promoted = try named.after(join("b", 2)).after(.declareDead([node("a")]))
        #expect(promoted.owner(of: shard)?.id == node("c") && promoted[shard].ownerNamedIn == named.revision)
        #expect(promoted[shard].standbyNamedIn == promoted.revision)
    }

    @Test("Where owner and standby die at once, the owner is named for want of another; where all die, nobody is")
    func bothDie() throws {
        let before = try Self.atRest()
        let shard = try Self.shard(in: before)
        let after = try before.after(.declareDead([node("a"), node("b")]))
        #expect(after.owner(of: shard)?.id == node("c") && after[shard].ownerNamedIn == after.revision)
        let none = try after.after(.leave(node("c")))
        #expect(none[shard].owner == .none && none[shard].ownerNamedIn == 0 && none[shard].standbyNamedIn == 0)
        let again = try none.after(join("d"))
        #expect(again.owner(of: shard)?.id == node("d") && again[shard].ownerNamedIn == again.revision)
    }

    @Test("A map of the highest revision ends no node that decides on it")
    func highestRevision() throws {
        var map = try map(join("a"))
        map.revision = .max
        #expect(try map.applying(join("b"))?[ShardID(7)].standbyNamedIn == .max)
    }

    @Test("The revisions survive their way through the store's bytes, and cost nothing where there are none")
    func encoding() throws {
        let rest = try Self.atRest()
        let plain = try ClusterMapValue(serializedBytes: rest.encoded())
        #expect(plain.standbyNamedIn.isEmpty && plain.ownerNamedIn.isEmpty)
        let named = try rest.after(.declareDead([node("b")])).after(join("b", 2)).after(.declareDead([node("a")]))
        let value = try ClusterMapValue(serializedBytes: named.encoded())
        #expect(value.standbyNamedIn == named.shards.map(\.standbyNamedIn) && value.standbyNamedIn.contains { $0 > 0 })
        #expect(value.ownerNamedIn == named.shards.map(\.ownerNamedIn) && value.ownerNamedIn.contains { $0 > 0 })
        let copy = try ClusterMap(decoding: named.encoded(), revision: named.revision, cluster: Self.cluster)
        #expect(copy == named)
        #expect(try named.encoded().count < rest.encoded().count + 2 * ShardID.count + 1000)
    }

    @Test("A map without them, as an earlier version writes it, is read; it is the same map as with them")
    func withoutNamings() throws {
        let map = try map(join("a"), join("b"))
        var value = try ClusterMapValue(serializedBytes: map.encoded())
        (value.standbyNamedIn, value.ownerNamedIn) = ([], [])
        let bytes: [UInt8] = try value.serializedBytes()
        let read = try ClusterMap(decoding: bytes, revision: map.revision, cluster: Self.cluster)
        #expect(read.shards.allSatisfy { $0.standbyNamedIn == 0 && $0.ownerNamedIn == 0 })
        #expect(read.shards.map(\.standby) == map.shards.map(\.standby) && read.members == map.members)
        // A node's memory of the map, and the store.
        #expect(read.isSuccessor(of: map) && map.isSuccessor(of: read))
        var other = map
        other[ShardID(7)].standbyNamedIn = 1
        #expect(!other.isSuccessor(of: map) && !map.isSuccessor(of: other))
        other = read
        other[ShardID(7)].standby = .none
        #expect(!other.isSuccessor(of: map) && !map.isSuccessor(of: other))
    }

    @Test("An earlier version finds what it knows in a map with them")
    func earlierVersion() throws {
        let map = try map(join("a"), join("b"))
        var value = try ClusterMapValue(serializedBytes: map.encoded())
        (value.standbyNamedIn, value.ownerNamedIn) = ([], [])
        // Fields 6 and 7 follow the others, in bytes that a reader without them passes over.
        let known: [UInt8] = try value.serializedBytes()
        let bytes = try map.encoded()
        #expect(Array(bytes.prefix(known.count)) == known)
        #expect(bytes[known.count] == 6 << 3 | 2)
    }

    @Test("As many as there are shards or none; no node was named in a later map than this")
    func numbers() async throws {
        let map = try map(join("a"), join("b"))
        var value = try ClusterMapValue(serializedBytes: map.encoded())
        value.standbyNamedIn[7] = .max
        let bytes: [UInt8] = try value.serializedBytes()
        let read = try ClusterMap(decoding: bytes, revision: map.revision, cluster: Self.cluster)
        #expect(read[ShardID(7)].standbyNamedIn == map.revision)
        for field in [\ClusterMapValue.standbyNamedIn, \.ownerNamedIn] {
            var short = value
            short[keyPath: field].removeLast()
            let bytes: [UInt8] = try short.serializedBytes()
            let refusal = await code {
                _ = try ClusterMap(decoding: bytes, revision: map.revision, cluster: Self.cluster)
            }
            #expect(refusal == .malformed)
        }
    }
}
