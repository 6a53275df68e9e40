package import ApusCore
import ApusWire
import Foundation
import SwiftProtobuf

/// The encoding of the map in the ownership store: one `MapValue` of `proto/apus/cluster.proto`, about 32 KiB. It has 4
/// to 16 KiB more for the owners, and as much for the standbys, if one of them was named without a planned move. The
/// second standbys have 8 KiB, and 4 to 16 KiB for when they were named. The history has 8 KiB, and up to 20 KiB for
/// its changes.
///
/// **Versions.** Fields are only added. A node of the previous wire version ignores those that it does not know, and
/// leaves them out of the maps that it writes. A new field must therefore be one that a map can lose: the history
/// begins again, the second standbys are named again, a node that was cordoned is cordoned no more, and a join whose
/// outcome is unknown is made again under the next incarnation. An operator can
/// cordon a node only when all nodes have wire version 2 (``ClusterService/cordon(_:_:)``).
///
/// The value does not include the revision. The store returns it beside the value.
extension ClusterMap {
    /// The largest value that is decoded, in bytes: the shards and 1,000 members.
    package static let valueByteCountMax = 1 << 20

    /// - Throws: 10018 if a member cannot be encoded, which does not happen with a valid map.
    package func encoded() throws(ApusError) -> [UInt8] {
        var value = ClusterMapValue()
        value.cluster = cluster.rawValue
        value.members = members.map(\.wireValue)
        var owners: [UInt8] = []
        var standbys: [UInt8] = []
        var epochs: [UInt8] = []
        owners.reserveCapacity(shards.count * 2)
        standbys.reserveCapacity(shards.count * 2)
        epochs.reserveCapacity(shards.count * 4)
        for shard in shards {
            owners.append(bigEndian: shard.owner.rawValue)
            standbys.append(bigEndian: shard.standby.rawValue)
            epochs.append(bigEndian: shard.epoch)
        }
        value.owners = Data(owners)
        value.standbys = Data(standbys)
        value.epochs = Data(epochs)
        if shards.contains(where: { $0.secondStandby != .none }) {
            var secondStandbys: [UInt8] = []
            for shard in shards { secondStandbys.append(bigEndian: shard.secondStandby.rawValue) }
            value.secondStandbys = Data(secondStandbys)
            value.secondStandbyNamedIn = shards.map(\.secondStandbyNamedIn)
        }
        // An empty list means that planned moves named all.
        if shards.contains(where: { $0.standbyNamedIn > 0 }) { value.standbyNamedIn = shards.map(\.standbyNamedIn) }
        if shards.contains(where: { $0.ownerNamedIn > 0 }) { value.ownerNamedIn = shards.map(\.ownerNamedIn) }
        value.changes = history.numbered.map(\.wireValue)
        value.ownerChanges = Data(history.ownerNumbers)
        value.standbyChanges = Data(history.standbyNumbers)
        do {
            return try value.serializedBytes()
        } catch {
            throw ApusError(.internalFailure, "the cluster map cannot be encoded: \(error)")
        }
    }

    /// Decodes what ``encoded()`` returned.
    ///
    /// - Parameter cluster: The cluster that this node belongs to.
    /// - Throws: 10011 for the map of another cluster, 10001 for bytes that are not a map.
    package init(decoding bytes: [UInt8], revision: UInt64, cluster: ClusterID) throws(ApusError) {
        guard bytes.count <= Self.valueByteCountMax, let value = try? ClusterMapValue(bounded: bytes),
            value.members.count <= Self.memberCountMax
        else {
            throw ApusError(.malformed, "the ownership value is not a cluster map")
        }
        guard value.cluster == cluster.rawValue else {
            throw ApusError(
                .wrongCluster, "the ownership store belongs to the cluster \(value.cluster), not \(cluster)")
        }
        let owners: [UInt16] = Self.integers(in: value.owners)
        let standbys: [UInt16] = Self.integers(in: value.standbys)
        let epochs: [UInt32] = Self.integers(in: value.epochs)
        guard owners.count == ShardID.count, standbys.count == owners.count, epochs.count == owners.count else {
            throw ApusError(.malformed, "the cluster map has \(owners.count) shards instead of \(ShardID.count)")
        }
        guard epochs.allSatisfy({ $0 <= WireNumber.termMax }) else {
            throw ApusError(.malformed, "the cluster map has an epoch that is out of bounds")
        }
        let seconds: [UInt16] = Self.integers(in: value.secondStandbys)
        guard value.secondStandbys.isEmpty || seconds.count == ShardID.count else {
            throw ApusError(.malformed, "the cluster map has \(seconds.count) second standbys")
        }
        let namings = [value.standbyNamedIn, value.ownerNamedIn, value.secondStandbyNamedIn]
        guard namings.allSatisfy({ $0.isEmpty || $0.count == ShardID.count }) else {
            throw ApusError(.malformed, "the cluster map does not say of every shard when its nodes were named")
        }
        var members: [Member] = []
        for member in value.members { members.append(try Member(wireValue: member)) }
        self.init(cluster: cluster)
        self.revision = revision
        self.members = members
        history = try MapHistory(wireValue: value)
        for index in shards.indices {
            let owner = MemberSlot(rawValue: owners[index])
            let standby = MemberSlot(rawValue: standbys[index])
            let second = seconds.isEmpty ? .none : MemberSlot(rawValue: seconds[index])
            guard [owner, standby, second].allSatisfy({ Self.isValid($0, of: members.count) }) else {
                throw ApusError(.malformed, "shard \(index) names a member that is not in the cluster map")
            }
            shards[index] = ShardAssignment(
                owner: owner, standby: standby, epoch: epochs[index],
                standbyNamedIn: Self.revision(at: index, in: namings[0], of: revision),
                ownerNamedIn: Self.revision(at: index, in: namings[1], of: revision), secondStandby: second,
                secondStandbyNamedIn: Self.revision(at: index, in: namings[2], of: revision))
        }
    }

    /// A map of an earlier version does not include it. No node can have been named in a later map than this.
    private static func revision(at index: Int, in namings: [UInt64], of map: UInt64) -> UInt64 {
        namings.isEmpty ? 0 : min(namings[index], map)
    }

    private static func isValid(_ slot: MemberSlot, of count: Int) -> Bool {
        slot == .none || Int(slot.rawValue) < count
    }

    private static func integers<Value: FixedWidthInteger & UnsignedInteger>(in data: Data) -> [Value] {
        let width = Value.bitWidth / 8
        guard data.count.isMultiple(of: width) else { return [] }
        var values: [Value] = []
        values.reserveCapacity(data.count / width)
        var value: Value = 0
        for (offset, byte) in data.enumerated() {
            value = value &<< 8 | Value(byte)
            guard (offset + 1).isMultiple(of: width) else { continue }
            values.append(value)
            value = 0
        }
        return values
    }
}

extension Member {
    fileprivate var wireValue: ClusterMember {
        var value = ClusterMember()
        value.name = id.name.rawValue
        value.incarnation = id.incarnation
        value.state =
            switch state {
            case .up: .up
            case .draining: .draining
            case .dead: .dead
            case .left: .left
            }
        value.transport = addresses.transport.description
        value.clients = addresses.clients.description
        value.http = addresses.http.description
        value.weight = weight
        value.cordoned = isCordoned
        value.process = process
        if let watchRule { (value.watchers, value.fullMeshMax) = (watchRule.watcherCount, watchRule.fullMeshMax) }
        return value
    }

    fileprivate init(wireValue: ClusterMember) throws(ApusError) {
        guard let name = NodeName(rawValue: wireValue.name), let transport = HostPort(wireValue.transport),
            let clients = HostPort(wireValue.clients), let http = HostPort(wireValue.http)
        else { throw ApusError(.malformed, "a member of the cluster map cannot be read") }
        let state: State =
            switch wireValue.state {
            case .up: .up
            case .draining: .draining
            case .dead: .dead
            case .left: .left
            case .unspecified, .UNRECOGNIZED:
                throw ApusError(.malformed, "the member \(name) has an unknown state")
            }
        self.init(
            id: NodeID(name: name, incarnation: wireValue.incarnation), state: state,
            addresses: NodeAddresses(transport: transport, clients: clients, http: http), weight: wireValue.weight,
            isCordoned: wireValue.cordoned,
            watchRule: wireValue.watchers == 0
                ? nil : WatchRule(watcherCount: wireValue.watchers, fullMeshMax: wireValue.fullMeshMax),
            process: wireValue.process)
    }
}

extension MapHistory {
    /// - Throws: 10001 if it is out of bounds.
    fileprivate init(wireValue: ClusterMapValue) throws(ApusError) {
        var numbered: [Numbered] = []
        for change in wireValue.changes.prefix(Self.changeCountMax + 1) {
            numbered.append(try Numbered(wireValue: change))
        }
        guard
            let history = MapHistory(
                numbered, ownerNumbers: Array(wireValue.ownerChanges),
                standbyNumbers: Array(wireValue.standbyChanges))
        else { throw ApusError(.malformed, "the history of the cluster map is out of bounds") }
        self = history
    }
}

extension MapHistory.Numbered {
    fileprivate var wireValue: ClusterMapChange {
        .with {
            ($0.number, $0.kind, $0.reason) = (
                UInt32(number), UInt32(change.kind.rawValue), UInt32(change.reason.rawValue)
            )
            if let maker = change.maker { $0.maker = maker.wireValue }
            $0.nodes = change.nodes.map(\.wireValue)
            ($0.firstRevision, $0.lastRevision) = (change.revisions.lowerBound, change.revisions.upperBound)
            ($0.firstMs, $0.lastMs) = (change.milliseconds.lowerBound, change.milliseconds.upperBound)
            $0.shardCount = UInt32(clamping: change.shardCount)
        }
    }

    fileprivate init(wireValue: ClusterMapChange) throws(ApusError) {
        guard let number = UInt8(exactly: wireValue.number), wireValue.nodes.count <= MapHistory.nodeCountMax,
            wireValue.firstRevision <= wireValue.lastRevision, wireValue.firstMs <= wireValue.lastMs
        else { throw ApusError(.malformed, "a change in the cluster map cannot be read") }
        var nodes: [NodeID] = []
        for node in wireValue.nodes { nodes.append(try NodeID(wireValue: node)) }
        var change = MapChange(
            kind: MapChange.Kind(rawValue: UInt8(truncatingIfNeeded: wireValue.kind)),
            reason: MapChange.Reason(rawValue: UInt8(truncatingIfNeeded: wireValue.reason)),
            maker: wireValue.hasMaker ? try NodeID(wireValue: wireValue.maker) : nil, nodes: nodes,
            revision: wireValue.firstRevision, milliseconds: wireValue.firstMs,
            shardCount: Int(wireValue.shardCount))
        change.revisions = wireValue.firstRevision...wireValue.lastRevision
        change.milliseconds = wireValue.firstMs...wireValue.lastMs
        self.init(number: number, change: change)
    }
}

extension NodeID {
    fileprivate var wireValue: ClusterNodeRef {
        .with { ($0.name, $0.incarnation) = (name.rawValue, incarnation) }
    }

    fileprivate init(wireValue: ClusterNodeRef) throws(ApusError) {
        guard let name = NodeName(rawValue: wireValue.name) else {
            throw ApusError(.malformed, "a node of a change in the cluster map cannot be read")
        }
        self.init(name: name, incarnation: wireValue.incarnation)
    }
}

extension [UInt8] {
    fileprivate mutating func append<Value: FixedWidthInteger & UnsignedInteger>(bigEndian value: Value) {
        var shift = Value.bitWidth
        while shift > 0 {
            shift -= 8
            append(UInt8(truncatingIfNeeded: value >> Value(shift)))
        }
    }
}
