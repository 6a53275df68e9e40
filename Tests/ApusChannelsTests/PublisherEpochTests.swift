import ApusChannels
import ApusCore
import ApusMedia
import Testing

@Suite("The epoch of a publisher (IV-C1, D7)")
struct PublisherEpochTests {
    private static let now: UInt32 = 1_800_000_000
    private static let day: UInt32 = 86_400
    private static let top = UInt32.max

    private func answer(
        known: UInt32 = 0, holder: UInt64 = 0, seen: UInt32 = 0, now: UInt32 = Self.now, _ epoch: UInt32,
        resumes: Bool = false
    ) -> PublisherEpoch.Answer {
        PublisherEpoch(known: known, holder: holder, seen: seen, wallSeconds: now, aheadMax: Self.day)
            .answer(to: PublishOffer(epoch: epoch, instance: 7, oldest: 0, resumes: resumes))
    }

    @Test("Who asks for an epoch gets one above all that is known, no lower than the primary's clock")
    func given() {
        #expect(answer(0) == .given(Self.now))
        #expect(answer(known: Self.now, holder: 9, 0) == .given(Self.now + 1))
        #expect(answer(known: Self.now + 7200, holder: 9, 0) == .given(Self.now + 7201))
        #expect(answer(known: 5, holder: 9, seen: Self.now + 60, 0) == .given(Self.now + 61))
        // The primary's clock is an hour behind that of the one before.
        #expect(answer(known: Self.now, now: Self.now - 3600, 0) == .given(Self.now + 1))
    }

    @Test(
        "An instance that comes back keeps its epoch, also where its first answer was lost or nobody knows the channel")
    func resumes() {
        #expect(answer(known: 50, holder: 7, 50, resumes: true) == .given(50))
        #expect(answer(known: 50, holder: 7, 0) == .given(50))
        #expect(answer(known: 50, holder: 0, 50, resumes: true) == .given(50))
        #expect(answer(Self.now - 900, resumes: true) == .given(Self.now - 900))
        #expect(answer(known: 50, holder: 7, 60, resumes: true) == .given(60))
    }

    @Test("Whose epoch another instance's followed hears 10024; where nobody knows whose it was it gets a new one")
    func superseded() {
        #expect(answer(known: 51, holder: 9, 50, resumes: true) == .refused)
        #expect(answer(known: Self.now, holder: 0, 50, resumes: true) == .given(Self.now + 1))
    }

    @Test("A claim far ahead uses nothing up: one that takes another epoch gets it, an old client hears 10024")
    func claims() {
        #expect(answer(Self.top, resumes: true) == .given(Self.now))
        #expect(answer(Self.top) == .refused)
        #expect(answer(Self.now + Self.day) == .given(Self.now + Self.day))
        #expect(answer(Self.now + Self.day + 1) == .refused)
        // Neither does a receiver's.
        #expect(answer(seen: Self.top, 0) == .given(Self.now))
        #expect(answer(known: Self.top, holder: 9, 0) == .given(Self.top))
    }

    @Test(
        "An old client with an epoch from its clock goes on as before: not below what is known, and not beside another")
    func oldClients() {
        #expect(answer(known: 50, holder: 9, 51) == .given(51))
        #expect(answer(known: 50, holder: 9, 50) == .refused)
        #expect(answer(known: 50, holder: 9, 49) == .refused)
        #expect(answer(known: 50, holder: 0, 49) == .refused)
        #expect(answer(known: 50, holder: 7, 50) == .given(50))
    }
}

@Suite("Publishers of one channel (IV-C1, D7)")
struct ChannelPublisherTests {
    private typealias Machine = ChannelStateMachine
    private static let nodes = ["a", "b", "c"].map { NodeID(name: NodeName(unchecked: $0), incarnation: 1) }
    private let a = nodes[0]
    private let b = nodes[1]
    private let c = nodes[2]

    private func time(_ milliseconds: UInt64) -> MonotonicTime {
        MonotonicTime(nanoseconds: 1_000_000_000 + milliseconds * 1_000_000)
    }

    private func machine(at local: NodeID) -> Machine {
        var machine = Machine(
            channel: ChannelID(device: DeviceID(unchecked: "camera")), local: local,
            configuration: Machine.Configuration())
        _ = machine.assign(Machine.Assignment(term: 1, owner: a, standby: b), now: time(0))
        return machine
    }

    private func frames(_ range: Range<UInt64>, epoch: UInt32) -> [RelayFrame] {
        range.map {
            SimulatedFrames.frame(FramePosition(epoch: epoch, sequence: $0), isKey: $0 == 2, isVideo: true, content: $0)
        }
    }

    private func open(
        _ machine: inout Machine, _ id: UInt64, epoch: UInt32 = 0, instance: UInt64, oldest: UInt64 = 0,
        resumes: Bool = false, wallSeconds: UInt32 = 1000
    ) -> (answer: Machine.IngestAnswer, actions: [Machine.Action]) {
        machine.openIngest(
            id, PublishOffer(epoch: epoch, instance: instance, oldest: oldest, resumes: resumes),
            wallSeconds: wallSeconds, now: time(1))
    }

    private func ended(_ actions: [Machine.Action]) -> [String] {
        actions.compactMap { action in
            if case .endIngest(let id, let error) = action { "\(id) \(error.code)" } else { nil }
        }
    }

    @Test("The same instance through another node keeps epoch and place, and the first node alone hears of it")
    func sameInstance() {
        var machine = machine(at: a)
        #expect(open(&machine, 1, instance: 7).answer == .accepted(epoch: 1000, next: 0, isProtected: false))
        _ = machine.ingest(1, frames(0..<3, epoch: 1000), now: time(2))
        let again = open(&machine, 2, epoch: 1000, instance: 7, resumes: true, wallSeconds: 400)
        #expect(again.answer == .accepted(epoch: 1000, next: 3, isProtected: false))
        #expect(ended(again.actions) == ["1 12003"])
        #expect(machine.ingest(1, frames(3..<4, epoch: 1000), now: time(4)).isEmpty)
    }

    @Test("Another instance takes the channel with its first frame; before that the publisher goes on")
    func challenger() {
        var machine = machine(at: a)
        _ = open(&machine, 1, instance: 7)
        _ = machine.ingest(1, frames(0..<3, epoch: 1000), now: time(2))
        let other = open(&machine, 2, instance: 8)
        #expect(other.answer == .accepted(epoch: 1001, next: 0, isProtected: false))
        #expect(ended(other.actions).isEmpty)
        #expect(!machine.ingest(1, frames(3..<4, epoch: 1000), now: time(3)).isEmpty)
        // It ended without a frame: nothing happened, and the next one gets what it would have.
        machine.closeIngest(2)
        #expect(open(&machine, 3, instance: 9).answer == .accepted(epoch: 1001, next: 0, isProtected: false))
        #expect(ended(machine.ingest(3, frames(0..<1, epoch: 1001), now: time(4))) == ["1 10024"])
        #expect(machine.ring.last == FramePosition(epoch: 1001, sequence: 0))
        #expect(machine.ingest(1, frames(4..<5, epoch: 1000), now: time(5)).isEmpty)
        // The one before comes back with its epoch: it was superseded.
        let late = open(&machine, 4, epoch: 1000, instance: 7, resumes: true)
        #expect(late.answer == .refused(ApusError(.stalePublisher)))
    }

    @Test("A camera that was restarted gets a higher epoch, whatever the clocks say")
    func restarted() {
        var machine = machine(at: a)
        for (round, wallSeconds) in [(1, 1000), (2, 8200), (3, 1001), (4, 0)] as [(UInt64, UInt32)] {
            guard
                case .accepted(let epoch, 0, _) = open(&machine, round, instance: round, wallSeconds: wallSeconds)
                    .answer
            else {
                Issue.record("start \(round) is refused")
                return
            }
            #expect(epoch > machine.ring.last?.epoch ?? 0)
            _ = machine.ingest(round, frames(0..<3, epoch: epoch), now: time(2))
            machine.closeIngest(round)
        }
    }

    @Test("A standby hears whose frames it copies, at the opening and when it changes, and as primary knows it")
    func copied() {
        var standby = machine(at: b)
        _ = standby.openCopy(term: 1, epoch: 1000, instance: 7, liveFrom: nil, now: time(1))
        standby.publisherChanged(term: 1, epoch: 1001, instance: 8)
        _ = standby.copied(frames(0..<4, epoch: 1001), term: 1)
        // What a primary that does not know it says changes nothing.
        standby.publisherChanged(term: 1, epoch: 1001, instance: 0)
        _ = standby.assign(Machine.Assignment(term: 2, owner: b, standby: c), now: time(9))
        let late = open(&standby, 1, epoch: 1000, instance: 7, resumes: true)
        #expect(late.answer == .refused(ApusError(.stalePublisher)))
        let publisher = open(&standby, 2, epoch: 1001, instance: 8, oldest: 2, resumes: true)
        #expect(publisher.answer == .accepted(epoch: 1001, next: 4, isProtected: false))
    }

    @Test("A primary says to an open copy whose frames follow, when it opens and when another instance publishes")
    func announces() {
        func announced(_ actions: [Machine.Action]) -> Bool {
            actions.contains { if case .announcePublisher = $0 { true } else { false } }
        }
        var machine = machine(at: a)
        #expect(!announced(open(&machine, 1, instance: 7).actions))
        #expect(announced(machine.copyOpened(at: b, after: nil, now: time(2))))
        #expect(!announced(open(&machine, 2, epoch: 1000, instance: 7, resumes: true).actions))
        machine.closeIngest(2)
        #expect(announced(open(&machine, 3, instance: 8).actions))
        #expect(machine.publisherIdentity == (1001, 8))
    }

    @Test("Receivers that have a position get no lower one from a primary that knows nothing")
    func receivers() {
        var machine = machine(at: a)
        machine.receiverHas(FramePosition(epoch: 5000, sequence: 3))
        #expect(open(&machine, 1, instance: 7).answer == .accepted(epoch: 5001, next: 0, isProtected: false))
    }
}
