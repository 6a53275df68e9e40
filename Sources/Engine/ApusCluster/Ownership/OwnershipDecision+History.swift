package import ApusCore

extension ClusterMap {
    /// The map that results from a decision, with its record; nil if the decision changes nothing (any more).
    ///
    /// - Throws: as ``applying(_:)``.
    package func applying(_ decision: OwnershipDecision, origin: ChangeOrigin) throws(ApusError) -> ClusterMap? {
        guard var next = try applying(decision) else { return nil }
        guard let (kind, nodes) = subject(of: decision) else { return next }
        let change = MapChange(
            kind: kind, reason: origin.reason, maker: origin.maker, nodes: nodes, revision: nextRevision,
            milliseconds: origin.milliseconds)
        next.history.record(change, before: shards, after: next.shards)
        return next
    }

    /// What the history records of a decision; nil for one that changes no shard, and no state of a member.
    private func subject(of decision: OwnershipDecision) -> (MapChange.Kind, [NodeID])? {
        switch decision {
        case .join(let node, _, _, _, _): (.joined, [node])
        case .declareDead(let nodes): (.dead, nodes.filter { aliveSlot(of: $0) != nil })
        case .drain(let node): (.draining, [node])
        case .undrain(let node): (.undrained, [node])
        case .leave(let node): (.left, [node])
        case .setStandby(let moves), .handOver(let moves):
            moves.first.map { move in
                let isDraining = members.contains { $0.id == move.owner && $0.state == .draining }
                return (isDraining ? .drained : .rebalanced, [])
            }
        case .cordon(let name, let isCordoned):
            (isCordoned ? .cordoned : .uncordoned, member(named: name).map { [$0.id] } ?? [])
        case .weigh(let name, _): (.weighted, member(named: name).map { [$0.id] } ?? [])
        case .setSecondStandby, .confirm, .setWatchRule: nil
        }
    }
}
