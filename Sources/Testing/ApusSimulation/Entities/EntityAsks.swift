import ApusCluster
import ApusCore

/// Requests of clients in transit through the nodes that they asked, sent and repeated as ``EntityRef`` does.
final class EntityAsks {
    private struct Ask {
        var call: SimulatedCall
        /// The node that the client asked.
        var node: EntityNode
        var deadline: MonotonicTime
        var delay = Duration.milliseconds(1)
        var completion: (SimulatedOutcome) -> Void
    }

    private static let delayMax = Duration.milliseconds(50)

    private unowned let world: EntityWorkload
    private var asks: [Int: Ask] = [:]
    private var last = 0

    init(world: EntityWorkload) { self.world = world }

    /// Lets a node call an entity.
    ///
    /// - Parameter completion: called when the node has an answer, until the request is ended.
    /// - Returns: the request's number, for ``end(_:)``.
    func begin(
        _ call: SimulatedCall, at node: EntityNode, until deadline: MonotonicTime,
        then completion: @escaping (SimulatedOutcome) -> Void
    ) -> Int {
        last += 1
        let number = last
        var call = call
        call.origin = .ask(number)
        asks[number] = Ask(call: call, node: node, deadline: deadline, completion: completion)
        node.later(11, after: world.simulation.span(0...2)) { self.send(number) }
        return number
    }

    /// No client waits for it any more. What is in flight is still carried out.
    func end(_ number: Int) { asks[number] = nil }

    private func send(_ number: Int) {
        guard let ask = asks[number], world.simulation.now < ask.deadline else { return }
        let (node, shard) = (ask.node, ask.call.entity.shard)
        let view = node.process.view
        let epoch = view[shard].epoch
        guard let owner = view.owner(of: shard), owner.state.isAlive else { return again(number) }
        if owner.id == node.id {
            if !node.admit(ask.call, epoch: epoch) { again(number) }
        } else if let target = world.node(of: owner.id), node.process.linked.contains(owner.id) {
            node.send(to: target, 12) {
                guard !target.admit(ask.call, epoch: epoch) else { return }
                let known = target.process.view[shard].epoch
                self.answer(number, .refused(ApusError(.moved), knownEpoch: known), from: target)
            }
        } else {
            again(number)
        }
    }

    private func again(_ number: Int) {
        guard let ask = asks[number] else { return }
        asks[number]?.delay = min(ask.delay * 2, Self.delayMax)
        ask.node.later(13, after: ask.delay) { self.send(number) }
    }

    /// An entity answered at a node.
    func answer(_ number: Int, _ outcome: SimulatedOutcome, from node: EntityNode) {
        guard let ask = asks[number] else { return }
        guard node !== ask.node else { return note(number, outcome) }
        node.send(to: ask.node, 14) { self.note(number, outcome) }
    }

    private func note(_ number: Int, _ outcome: SimulatedOutcome) {
        guard let ask = asks[number] else { return }
        if case .refused(let error, let knownEpoch) = outcome {
            if let knownEpoch, knownEpoch > ask.node.process.view[ask.call.entity.shard].epoch { ask.node.refresh() }
            switch error.code {
            case .moved: return again(number)
            case .linkLost where ask.call.id != nil: return again(number)
            case .linkLost where world.mutant == .repeatsWithoutID: return again(number)
            case .storageFailed where ask.call.id == nil && world.mutant == .repeatsWithoutID: return again(number)
            default: break
            }
        }
        asks[number] = nil
        let work = SimulationWork(kind: 15) { ask.completion(outcome) }
        world.simulation.later(.work(work), after: world.simulation.span(0...2))
    }
}
