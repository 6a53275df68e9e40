import ApusChannels
import ApusCore
import ApusMedia
import Testing

@Suite("Where a live join begins, and what an edge asks for (D7)")
struct LiveJoinTests {
    private typealias Machine = ChannelStateMachine
    private static let nodes = ["a", "b", "c"].map { NodeID(name: NodeName(unchecked: $0), incarnation: 1) }
    private let a = nodes[0]
    private let b = nodes[1]
    private let c = nodes[2]

    private func time(_ milliseconds: UInt64) -> MonotonicTime {
        MonotonicTime(nanoseconds: 1_000_000_000 + milliseconds * 1_000_000)
    }

    private func at(_ sequence: UInt64, _ epoch: UInt32 = 1) -> FramePosition {
        FramePosition(epoch: epoch, sequence: sequence)
    }

    private func machine(at local: NodeID) -> Machine {
        var machine = Machine(
            channel: ChannelID(device: DeviceID(unchecked: "camera")), local: local,
            configuration: Machine.Configuration())
        _ = machine.assign(Machine.Assignment(term: 1, owner: a, standby: b), now: time(0))
        return machine
    }

    private func frames(_ range: Range<UInt64>, keys: Set<UInt64>, epoch: UInt32 = 1) -> [RelayFrame] {
        range.map { SimulatedFrames.frame(at($0, epoch), isKey: keys.contains($0), isVideo: true, content: $0) }
    }

    /// An edge that was watched until frame 9, and is not any more.
    private func idleEdge() -> Machine {
        var machine = machine(at: c)
        _ = machine.receiversChanged(hasReceivers: true, now: time(1))
        _ = machine.subscribed(1, term: 1, liveFrom: at(2), now: time(2))
        _ = machine.received(1, frames(0..<10, keys: [2]))
        #expect(machine.liveFloor == at(2))
        _ = machine.receiversChanged(hasReceivers: false, now: time(3))
        return machine
    }

    /// What the first of the actions that subscribe asks for.
    private func subscription(_ actions: [Machine.Action]) -> (node: NodeID, after: FramePosition?)? {
        for case .subscribe(_, let node, let after) in actions { return (node, after) }
        return nil
    }

    @Test("An edge that nobody watches has no live picture; its next viewer gets the primary's")
    func idle() throws {
        var machine = idleEdge()
        #expect(machine.liveFloor == at(10))
        let asked = try #require(subscription(machine.receiversChanged(hasReceivers: true, now: time(9000))))
        #expect(asked == (a, nil))
        _ = machine.subscribed(2, term: 1, liveFrom: at(402), now: time(9001))
        #expect(machine.liveFloor == at(402))
        _ = machine.received(2, frames(380..<410, keys: [402]))
        #expect(machine.ring.oldest == at(380))
        // From now on what is held goes on: a lost subscription is asked for again after the last frame.
        let again = try #require(subscription(machine.subscriptionLost(2, now: time(9002))))
        #expect(again == (b, at(409)))
        #expect(machine.liveFloor == at(410))
    }

    @Test("A receiver that goes on where it was makes an idle edge go on too; one that is far ahead does not")
    func resumes() throws {
        for (position, expected) in [(at(8), at(9)), (at(600), at(472))] {
            var machine = idleEdge()
            machine.receiverWants(after: position)
            let asked = try #require(subscription(machine.receiversChanged(hasReceivers: true, now: time(9000))))
            #expect(asked == (a, expected))
        }
    }

    @Test("While nothing came, a second receiver that wants more than the first gets it")
    func asksEarlier() throws {
        var machine = idleEdge()
        _ = machine.receiversChanged(hasReceivers: true, now: time(9000))
        machine.receiverWants(after: at(600))
        let actions = machine.receiversChanged(hasReceivers: true, now: time(9001))
        guard case .unsubscribe(2)? = actions.first else {
            Issue.record("the live subscription stays: \(actions)")
            return
        }
        #expect(try #require(subscription(actions)) == (a, at(472)))
        machine.receiverWants(after: at(700))
        #expect(machine.receiversChanged(hasReceivers: true, now: time(9002)).isEmpty)
        _ = machine.subscribed(3, term: 1, liveFrom: at(602), now: time(9003))
        _ = machine.received(3, frames(473..<610, keys: [602]))
        machine.receiverWants(after: at(300))
        #expect(machine.receiversChanged(hasReceivers: true, now: time(9004)).isEmpty)
    }

    @Test("A copy says where the live picture is; a standby shows it, and as the next primary all that it has")
    func standby() {
        var machine = machine(at: b)
        _ = machine.openCopy(term: 1, epoch: 1, instance: 7, liveFrom: at(7), now: time(1))
        #expect(machine.liveFloor == at(7))
        _ = machine.copied(frames(0..<10, keys: [2, 7]), term: 1)
        #expect(machine.liveFrom == at(7))
        _ = machine.copyClosed(term: 1, now: time(2))
        #expect(machine.liveFloor == at(10))
        _ = machine.assign(Machine.Assignment(term: 2, owner: b, standby: c), now: time(3))
        #expect(machine.liveFloor == nil)
        #expect(machine.liveFrom == at(7))
    }

    @Test("An edge that becomes primary after it was idle does not show what it had then")
    func idleEdgePromoted() {
        var machine = idleEdge()
        _ = machine.assign(Machine.Assignment(term: 2, owner: c, standby: b), now: time(9000))
        #expect(machine.liveFloor == at(10))
        #expect(machine.liveFrom == at(10))
    }
}
