import ApusCluster
import ApusContract
import ApusCore
import ApusLocal
import ApusNode
import ApusNodeConfiguration
import ApusStorage
import Foundation

/// The state of the ownership store, and each node's memory of it.
struct OwnershipSurvey: Sendable {
    /// A node and its memory of the store.
    struct Witness: Sendable {
        var configuration: NodeConfiguration
        /// The newest map that the node adopted, as it wrote it to its directory.
        var held: RevisionFile?
        /// The reason if there is none.
        var reason: String?
        /// Nil if the node does not answer.
        var status: NodeStatus?

        var name: String { configuration.node.rawValue }
    }

    /// The map of a node that is to be restored.
    struct Choice: Sendable {
        var node: String
        var held: RevisionFile
    }

    /// How long a running node may take to write a map that it has adopted.
    private static let settleTimeMax = Duration.seconds(3)
    private static let answerTimeout = Duration.seconds(2)

    let path: String
    let cluster: ClusterID
    let witnesses: [Witness]
    let store: (found: OwnershipMark?, value: [UInt8], reason: String?)

    /// - Throws: 10022 if the configurations do not belong to one cluster with one store.
    static func gather(_ configurations: [NodeConfiguration]) async throws(ApusError) -> OwnershipSurvey {
        guard let first = configurations.first,
            configurations.allSatisfy({ $0.cluster == first.cluster && hasSameStore($0, first) })
        else {
            throw ApusError(.configurationInvalid, "the configurations differ in cluster or ownership store")
        }
        let witnesses = await withTaskGroup(of: (Int, Witness).self) { group in
            for (index, configuration) in configurations.enumerated() {
                group.addTask { (index, await witness(configuration)) }
            }
            var found: [(Int, Witness)] = []
            for await one in group { found.append(one) }
            return found.sorted { $0.0 < $1.0 }.map(\.1)
        }
        return OwnershipSurvey(
            path: NodeOwnershipRestore.place(first), cluster: first.cluster, witnesses: witnesses,
            store: await NodeOwnershipRestore.look(first))
    }

    private static func hasSameStore(_ one: NodeConfiguration, _ other: NodeConfiguration) -> Bool {
        // The order of the endpoints may differ.
        guard let etcd = one.etcd, let otherEtcd = other.etcd else {
            return one.etcd == nil && other.etcd == nil
                && URL(fileURLWithPath: one.ownershipDirectory).standardizedFileURL
                    == URL(fileURLWithPath: other.ownershipDirectory).standardizedFileURL
        }
        return etcd.prefix == otherEtcd.prefix && Set(etcd.endpoints) == Set(otherEtcd.endpoints)
    }

    /// Asks a node, and waits until it has written the map that it reports.
    private static func witness(_ configuration: NodeConfiguration) async -> Witness {
        var witness = Witness(configuration: configuration, status: await status(of: configuration))
        let deadline = ContinuousClock.now + settleTimeMax
        while true {
            do {
                witness.held = try OwnershipMemory.load(
                    directory: configuration.dataDirectory, cluster: configuration.cluster)
                if witness.held == nil { witness.reason = "was never a member" }
            } catch {
                witness.reason = error.message
            }
            let isBehind = (witness.held?.revision ?? 0) < (witness.status?.revision ?? 0)
            guard isBehind, ContinuousClock.now < deadline else { return witness }
            try? await Task.sleep(for: .milliseconds(50))
        }
    }

    private static func status(of configuration: NodeConfiguration) async -> NodeStatus? {
        guard
            let answer = try? await NodeHTTP.send(
                "GET", "/v1/status", to: configuration.advertisedHTTP, timeout: answerTimeout),
            answer.status == 200,
            let status = try? JSONDecoder().decode(NodeStatus.self, from: Data(answer.body)),
            status.name == configuration.node.rawValue
        else { return nil }
        return status
    }

    /// The survey as text.
    var table: [String] {
        let found =
            store.found.map { "revision \($0.revision) of store \($0.store)" } ?? store.reason ?? "cannot be read"
        let rows = witnesses.map { witness in
            [
                witness.name, witness.status.map(\.state) ?? "no answer",
                witness.held.map { "\($0.revision)" } ?? "-",
                witness.held.map { "\($0.store)" } ?? witness.reason ?? "-",
            ]
        }
        return ["The store in \(path): \(found)."]
            + TextTable.lines([["NODE", "STATE", "HOLDS REVISION", "OF STORE"]] + rows)
    }

    /// The survey for `--json`.
    struct Report: Encodable {
        /// The store, or a node's memory of it.
        struct Held: Encodable {
            /// The name of the node; nil for the store itself.
            var node: String?
            /// The node's state; nil if it does not answer.
            var state: String?
            /// Nil with a reason if there is no map, or it cannot be read.
            var revision: UInt64?
            /// The identity of the store.
            var store: String?
            var reason: String?
        }
        /// The directory of the store, or the endpoints of etcd.
        var path: String
        var store: Held
        var nodes: [Held]
    }

    /// The survey as a value to encode.
    var report: Report {
        Report(
            path: path,
            store: .init(
                revision: store.found?.revision, store: store.found.map { "\($0.store)" }, reason: store.reason),
            nodes: witnesses.map { witness in
                .init(
                    node: witness.name, state: witness.status?.state, revision: witness.held?.revision,
                    store: witness.held.map { "\($0.store)" }, reason: witness.reason)
            })
    }

    /// The map to restore; nil if the store has it, or one that follows from it.
    /// The newest map is chosen if all nodes have the same store. It must follow from those of all other nodes.
    /// - Throws: 10020 if no node has a map, or the nodes disagree and none is named.
    func choice(from name: String?) throws(ApusError) -> Choice? {
        let candidates = witnesses.compactMap { witness in
            witness.held.map { (choice: Choice(node: witness.name, held: $0), isLiving: witness.status != nil) }
        }
        if let name {
            guard let named = candidates.first(where: { $0.choice.node == name }) else {
                throw ApusError(.badParameter, "there is no node '\(name)' with a map")
            }
            return named.choice
        }
        let stores = Set(candidates.map(\.choice.held.store))
        let newest = candidates.max { left, right in
            (left.choice.held.revision, left.isLiving ? 1 : 0) < (right.choice.held.revision, right.isLiving ? 1 : 0)
        }
        guard let newest else { throw ApusError(.stateForeign, "no node has a map of the cluster \(cluster)") }
        guard stores.count == 1 else {
            throw ApusError(.stateForeign, "the nodes have maps of different stores; choose one with --from NODE")
        }
        let map = try Self.map(newest.choice.held)
        for other in candidates {
            guard map.isSuccessor(of: try Self.map(other.choice.held)) else {
                throw ApusError(
                    .stateForeign,
                    "the map of \(newest.choice.node) does not follow from that of \(other.choice.node); choose one "
                        + "with --from NODE")
            }
        }
        guard let found = store.found, found.store == newest.choice.held.store,
            let held = try? ClusterMap(decoding: store.value, revision: found.revision, cluster: cluster),
            held.isSuccessor(of: map)
        else { return newest.choice }
        return nil
    }

    /// Higher than every known revision.
    var nextRevision: UInt64 {
        var highest = store.found?.revision ?? 0
        for witness in witnesses {
            highest = max(highest, witness.held?.revision ?? 0, witness.status?.revision ?? 0)
        }
        return highest + OwnershipRestore.revisionGap
    }

    /// - Parameter revision: the least revision; in etcd it may become higher.
    /// - Returns: the map's revision, and the path of the old directory; nil if there was none.
    /// - Throws: 10021.
    func put(
        _ choice: Choice, as revision: UInt64
    ) async throws(ApusError) -> (revision: UInt64, earlier: String?) {
        guard let configuration = witnesses.first?.configuration else { throw ApusError(.badParameter) }
        var record = choice.held
        record.revision = revision
        record.value = try Self.noted(choice, as: revision)
        let name = "\(Int(Date().timeIntervalSince1970))-\(ProcessInfo.processInfo.processIdentifier)"
        return try await NodeOwnershipRestore.put(record, configuration, name: name)
    }

    /// The value of the map, with the restore in its history.
    private static func noted(_ choice: Choice, as revision: UInt64) throws(ApusError) -> [UInt8] {
        var map = try map(choice.held)
        let holder = NodeName(rawValue: choice.node).flatMap { map.member(named: $0)?.id }
        let change = MapChange(
            kind: .restored, maker: nil, nodes: holder.map { [$0] } ?? [], revision: revision,
            milliseconds: UInt64(max(0, Date().timeIntervalSince1970) * 1000))
        map.history.record(change, before: map.shards, after: map.shards)
        return try map.encoded()
    }

    /// The running nodes that have not adopted the revision in time, or still report a condition of the store.
    func waitForLiving(revision: UInt64, timeout: Duration) async -> [String] {
        let deadline = ContinuousClock.now + timeout
        while true {
            var missing: [String] = []
            for witness in witnesses where witness.status != nil {
                let status = await Self.status(of: witness.configuration)
                let isWrong = (status?.conditions ?? []).contains { $0.type.hasPrefix("ownership_store_") }
                if (status?.revision ?? 0) < revision || isWrong { missing.append(witness.name) }
            }
            guard !missing.isEmpty, ContinuousClock.now < deadline else { return missing }
            try? await Task.sleep(for: .milliseconds(100))
        }
    }

    private static func map(_ held: RevisionFile) throws(ApusError) -> ClusterMap {
        try ClusterMap(decoding: held.value, revision: held.revision, cluster: held.cluster)
    }
}
