import ApusChannels
import ApusCore
import ApusMedia

/// What goes wrong, and what the ownership store then decides.
extension World {
    /// A cluster that runs, with everything that will happen to it already planned.
    static func play(seed: UInt64, mutant: Mutant = .none) -> World {
        let world = World(seed: seed, mutant: mutant)
        world.set()
        world.faultsEnd = world.now + 2300 * millisecond
        world.planFault()
        world.watchCopy()
        world.watchLive()
        let producingEnd = world.faultsEnd + 1700 * millisecond
        world.after(producingEnd - world.now) { [unowned world] in
            world.checkProtected()
            world.publisher.end()
        }
        world.run(until: producingEnd + 900 * millisecond)
        world.checkCaughtUp()
        return world
    }

    private func set() {
        let count = 3 + below(2)
        for index in 0..<count { _ = addNode(named: "node\(index)") }
        truth = ChannelStateMachine.Assignment(term: 1, owner: nodes[0].id, standby: nodes[1].id)
        revision = 1
        for node in nodes { node.learn(truth, dead: [], revision: revision) }
        publisher.start()
        publisher.produce()
        for name in 0..<(2 + below(4)) {
            let viewer = SimulatedViewer(name: name, world: self)
            viewers.append(viewer)
            after(span(0...600)) { viewer.connect() }
        }
    }

    // MARK: - The ownership store

    /// Every node hears of a change, some soon, some late.
    private func broadcast() {
        revision += 1
        let (truth, dead, revision) = (truth, retired, revision)
        for node in nodes where node.isAlive {
            let delay = chance(0.15) ? span(50...400) : span(1...40)
            if node.isPaused { continue }  // A paused node reads the store again after it woke.
            after(delay, at: node) { node.learn(truth, dead: dead, revision: revision) }
        }
    }

    private func change(
        _ sentence: String, isHarmless: Bool = false, _ body: (inout ChannelStateMachine.Assignment) -> Void
    ) {
        body(&truth)
        tell("map: \(sentence): \(truth)")
        if !isHarmless { copiedAt = nil }
        broadcast()
    }

    // MARK: - Planned moves

    /// What the owner's hand-over does for another standby (D5): feeds it, and names it when it has everything. The
    /// swap may be made long after it was asked for, and also when the owner has died meanwhile.
    private func moveStandby(of primary: SimulatedNode, to target: NodeID) {
        guard candidate == nil else { return }
        tell("\(target) is to stand by")
        candidate = target
        primary.run { primary.setCandidate(target) }
        if mutant == .namesStandbyEarly {
            nameStandby(target, after: 1...40, under: truth.term)
        } else {
            awaitReplica(of: primary, at: target, under: truth.term, until: now + 1000 * Self.millisecond)
        }
    }

    private func awaitReplica(of primary: SimulatedNode, at target: NodeID, under term: Epoch, until deadline: UInt64) {
        // The owner may have died: its hand-over is over with it.
        after(deadline + 10 * Self.millisecond - now) { [unowned self] in
            if !primary.isAlive, candidate == target { candidate = nil }
        }
        poll(primary, target, term, deadline)
    }

    private func poll(_ primary: SimulatedNode, _ target: NodeID, _ term: Epoch, _ deadline: UInt64) {
        after(10 * Self.millisecond, at: primary) { [unowned self] in
            guard truth.term == term, !retired.contains(target), now < deadline else {
                primary.setCandidate(nil)
                return candidate = nil
            }
            guard primary.machine.isCopied(to: target) else { return poll(primary, target, term, deadline) }
            nameStandby(target, after: 1...120, under: term)
        }
    }

    private func nameStandby(_ target: NodeID, after milliseconds: ClosedRange<UInt64>, under term: Epoch) {
        after(span(milliseconds)) { [unowned self] in
            candidate = nil
            guard truth.term == term, truth.owner != target, !retired.contains(target) else { return }
            change("another standby", isHarmless: true) { $0.standby = target }
            checkNamed(target)
        }
    }

    /// A node was found dead: its standby takes over, and somebody else stands by.
    private func retire(_ node: SimulatedNode) {
        guard retired.insert(node.id).inserted else { return }
        change("\(node.id) is dead") { truth in
            let others = liveNodes.map(\.id)
            if truth.owner == node.id {
                truth.owner = truth.standby ?? others.first
                truth.standby = nil
                truth.term += 1
            }
            if truth.standby == node.id { truth.standby = nil }
            if truth.standby == nil {
                let candidates = others.filter { $0 != truth.owner }
                truth.standby = candidates.isEmpty ? nil : candidates[below(candidates.count)]
            }
        }
    }

    private func join(named name: String) {
        guard !liveNodes.contains(where: { $0.id.name.rawValue == name }) else { return }
        let node = addNode(named: name)
        tell("\(node.id) joins")
        if truth.standby == nil {
            change("a standby joined") { $0.standby = node.id }
        } else {
            broadcast()
        }
        node.learn(truth, dead: retired, revision: revision)
    }

    /// Notes when the standby was last seen to have nearly all that the primary has.
    private func watchCopy() {
        if let primary = truth.owner.flatMap(node), let standby = truth.standby.flatMap(node), primary.isAlive,
            standby.isAlive, !primary.isPaused, !standby.isPaused, primary.machine.assignment == truth,
            primary.machine.isProtected, let first = primary.machine.ring.last, let second = standby.machine.ring.last,
            first.epoch == second.epoch, second.sequence + 10 >= first.sequence
        {
            copiedAt = now
        }
        after(5 * Self.millisecond) { [unowned self] in watchCopy() }
    }

    /// Notes the newest key frame that the primary has.
    private func watchLive() {
        if let primary = truth.owner.flatMap(node), primary.isAlive, !primary.isPaused,
            let position = primary.machine.ring.livePosition
        {
            liveHistory.append((now, position))
        }
        after(5 * Self.millisecond) { [unowned self] in watchLive() }
    }

    /// The channel has survived what came before: one more failure must not cost anything.
    private var isSettled: Bool {
        guard let copiedAt, now - copiedAt < 400 * Self.millisecond else { return false }
        let needed = [truth.owner, truth.standby] + (candidate == nil ? [] : [candidate])
        return needed.allSatisfy { id in
            id.flatMap(node).map { $0.isAlive && !$0.isPaused } ?? false
        }
    }

    // MARK: - Faults

    private func planFault() {
        after(span(60...500)) { [unowned self] in
            guard now < faultsEnd else { return }
            makeFault()
            planFault()
        }
    }

    private func makeFault() {
        let primary = truth.owner.flatMap(node)
        let standby = truth.standby.flatMap(node)
        let edges = endpoints.filter { $0 !== primary && $0 !== standby && ($0.id != candidate || isSettled) }
        let hasSpare = endpoints.count >= 3
        switch below(16) {
        case 0, 1: if let primary, isSettled, hasSpare { kill(primary) }
        case 2: if let standby, isSettled, hasSpare { kill(standby) }
        case 3: if let edge = edges.first { kill(edge) }
        case 4, 5: if let primary, isSettled, hasSpare { pause(primary) }
        case 6: if let standby, isSettled, hasSpare { pause(standby) }
        case 7: if let edge = edges.last { pause(edge) }
        case 8:
            if let primary, let standby, primary.machine.isCopied(to: standby.id), isSettled {
                change("swap") { truth in
                    (truth.owner, truth.standby) = (truth.standby, truth.owner)
                    truth.term += 1
                }
            }
        case 9: if let primary, let edge = edges.first, isSettled { moveStandby(of: primary, to: edge.id) }
        case 10:
            tell("the publisher starts anew")
            publisher.start()
        case 11: cutOne()
        case 12:
            tell("the publisher goes to another endpoint")
            publisher.connect()
        case 13: moveViewer(viewers[below(viewers.count)])
        default: emptyEdge(edges.isEmpty ? endpoints[below(endpoints.count)] : edges[below(edges.count)])
        }
    }

    private func cutOne() {
        guard let node = endpoints.first, endpoints.count > 1 else { return }
        let all = endpoints.flatMap { connections(of: $0) }
        guard !all.isEmpty, node.isAlive else { return }
        let connection = all[below(all.count)]
        tell("the link \(connection.initiator.id) → \(connection.acceptor.id) breaks")
        cut(connection, noticedWithin: 0...3)
    }

    private func moveViewer(_ viewer: SimulatedViewer) {
        guard viewer.isWatching else { return }
        tell("viewer \(viewer.name) leaves")
        viewer.disconnect()
        after(span(1...300)) { viewer.connect() }
    }

    /// All viewers of a node leave; some come back later, for the live picture, mostly to the same node.
    private func emptyEdge(_ node: SimulatedNode) {
        tell("\(node.id) has no viewers any more")
        for viewer in viewers where viewer.isWatching && viewer.node === node {
            viewer.disconnect()
            let isBack = chance(0.7)
            after(span(100...1200)) { viewer.watchAnew(at: isBack ? node : nil) }
        }
    }

    private func kill(_ node: SimulatedNode) {
        tell("\(node.id) is killed")
        end(node)
        after(span(15...90)) { [unowned self] in retire(node) }
        if chance(0.7) { after(span(200...700)) { [unowned self] in join(named: node.id.name.rawValue) } }
    }

    /// The process of a node is gone: links and clients hear of it from their sockets.
    private func end(_ node: SimulatedNode) {
        let broken = connections(of: node)
        node.end()
        for connection in broken { cut(connection, noticedWithin: 1...15) }
        checkAcknowledged()
        moveClients(of: node, within: 1...25)
    }

    private func moveClients(of node: SimulatedNode, within milliseconds: ClosedRange<UInt64>) {
        for viewer in viewers where viewer.node === node {
            after(span(milliseconds)) { if viewer.node === node { viewer.connect() } }
        }
        guard publisher.node === node else { return }
        after(span(milliseconds)) { [unowned self] in if publisher.node === node { publisher.connect() } }
    }

    private func pause(_ node: SimulatedNode) {
        let length = chance(0.3) ? span(20...190) : span(300...1300)
        tell("\(node.id) stops for \(length / Self.millisecond) ms")
        node.pause()
        after(span(250...340)) { [unowned self] in if node.isPaused, node.isAlive { retire(node) } }
        after(span(180...230)) { [unowned self] in
            if node.isPaused { moveClients(of: node, within: 0...20) }
        }
        after(length) { [unowned self] in
            guard node.isAlive else { return }
            tell("\(node.id) goes on")
            node.wake()
            after(span(2...150), at: node) { [unowned self] in
                node.learn(truth, dead: retired, revision: revision)
            }
        }
    }

    /// A node read of its own death in the map: its process ends and starts again as a new life.
    func fenced(_ node: SimulatedNode) {
        tell("\(node.id) ends: the map says that it is dead")
        end(node)
        after(span(100...400)) { [unowned self] in join(named: node.id.name.rawValue) }
    }

    // MARK: - Invariants

    /// A live join begins no earlier than what the primary had as its newest key frame when it was asked for. Links,
    /// dead primaries and maps that come late make nodes see the primary that much later.
    func checkLive(_ viewer: Int, began position: FramePosition, askedAt time: UInt64) {
        let seen = liveHistory.last { $0.time + Self.liveDelayMax <= time }
        guard let seen, position < seen.position else { return }
        fail("viewer \(viewer) began at \(position), when the primary had a key frame at \(seen.position) long before")
    }
    private static let liveDelayMax = 450 * millisecond

    /// A frame that the publisher was told is safe is at the primary or at its standby (D7).
    func checkHeld(_ position: FramePosition) {
        let holders = [truth.owner, truth.standby].compactMap { $0.flatMap(node) }.filter(\.isAlive)
        guard holders.contains(where: { $0.machine.ring.last.map { $0 >= position } ?? false }) else {
            return fail("\(position) was acknowledged, but neither primary nor standby has it")
        }
    }

    /// A standby that the map names by plan has all that was acknowledged (D5), unless the primary says otherwise.
    private func checkNamed(_ target: NodeID) {
        guard publisher.acknowledged > 0, let standby = node(target), let primary = truth.owner.flatMap(node),
            primary.machine.isProtected
        else { return }
        let position = FramePosition(epoch: publisher.epoch ?? 0, sequence: publisher.acknowledged - 1)
        guard standby.machine.ring.last.map({ $0 >= position }) ?? false else {
            return fail("\(target) was named standby without \(position), which was acknowledged")
        }
    }

    private func checkAcknowledged() {
        guard publisher.acknowledged > 0 else { return }
        checkHeld(FramePosition(epoch: publisher.epoch ?? 0, sequence: publisher.acknowledged - 1))
    }

    /// Long after the last fault, and while frames are on the way, the channel is protected.
    private func checkProtected() {
        guard let primary = truth.owner.flatMap(node), let standby = truth.standby.flatMap(node), primary.isAlive,
            standby.isAlive, !primary.isPaused, !standby.isPaused
        else { return }
        if !primary.machine.isProtected { fail("\(primary.id) is not protected by \(standby.id)") }
    }

    private func checkCaughtUp() {
        guard !isFailed else { return }
        let end = FramePosition(epoch: publisher.epoch ?? 0, sequence: publisher.nextSequence - 1)
        for viewer in viewers where viewer.last != end {
            let last = viewer.last.map(\.description) ?? "nothing"
            fail("viewer \(viewer.name) at \(viewer.node?.id.description ?? "no endpoint") has \(last), not \(end)")
        }
        for viewer in viewers where viewer.skippedCount > 0 && !viewer.isLateForEdge {
            fail("viewer \(viewer.name) lost \(viewer.skippedCount) frames that its nodes could have held")
        }
        if publisher.windowCount > 0 { fail("\(publisher.windowCount) frames are still not acknowledged") }
    }
}
