import ApusChannels
import ApusCore
import ApusMedia
import Testing

@Suite("One channel at one node (D7)")
struct ChannelStateMachineTests {
    private typealias Machine = ChannelStateMachine
    private static let nodes = ["a", "b", "c"].map { NodeID(name: NodeName(unchecked: $0), incarnation: 1) }
    private let a = nodes[0]
    private let b = nodes[1]
    private let c = nodes[2]

    private func time(_ milliseconds: UInt64) -> MonotonicTime {
        MonotonicTime(nanoseconds: 1_000_000_000 + milliseconds * 1_000_000)
    }

    private func machine(at local: NodeID, term: Epoch = 1, owner: NodeID?, standby: NodeID?) -> Machine {
        var machine = Machine(
            channel: ChannelID(device: DeviceID(unchecked: "camera")), local: local,
            configuration: Machine.Configuration())
        _ = machine.assign(Machine.Assignment(term: term, owner: owner, standby: standby), now: time(0))
        return machine
    }

    /// A primary with an open copy and a publisher of epoch 1, instance 7.
    private func primary() -> Machine {
        var machine = machine(at: a, owner: a, standby: b)
        let opened = machine.openIngest(1, PublishOffer(epoch: 1, instance: 7, oldest: 0), wallSeconds: 0, now: time(0))
        #expect(opened.answer == .accepted(epoch: 1, next: 0, isProtected: false))
        #expect(names(opened.actions) == ["openCopy b#1"])
        _ = machine.copyOpened(at: b, after: nil, now: time(1))
        return machine
    }

    private func frames(_ range: Range<UInt64>, epoch: UInt32 = 1) -> [RelayFrame] {
        range.map {
            SimulatedFrames.frame(FramePosition(epoch: epoch, sequence: $0), isKey: $0 == 2, isVideo: true, content: $0)
        }
    }

    /// Actions as text, so that a test reads as what it expects.
    private func names(_ actions: [Machine.Action]) -> [String] {
        actions.map { action in
            switch action {
            case .distribute(let frames): "distribute \(frames.map(\.position.sequence))"
            case .adopt: "adopt"
            case .beginLive(let position): "beginLive \(position?.description ?? "-")"
            case .acknowledge(_, _, let next): "acknowledge \(next)"
            case .resume(_, let next): "resume \(next)"
            case .endIngest(let id, let error): "endIngest \(id) \(error.code)"
            case .openCopy(let node): "openCopy \(node)"
            case .closeCopy: "closeCopy"
            case .announcePublisher(let node): "announcePublisher \(node)"
            case .refuseCopy: "refuseCopy"
            case .confirmCopy(_, let next): "confirmCopy \(next)"
            case .subscribe(_, let node, let after): "subscribe \(node) after \(after?.description ?? "-")"
            case .unsubscribe: "unsubscribe"
            }
        }
    }

    @Test("The publisher hears that frames are safe when the standby confirmed them, not before")
    func acknowledges() {
        var machine = primary()
        #expect(names(machine.ingest(1, frames(0..<3), now: time(2))) == ["distribute [0, 1, 2]"])
        #expect(names(machine.copyConfirmed(at: b, epoch: 1, next: 2, now: time(3))) == ["acknowledge 2"])
        #expect(names(machine.copyConfirmed(at: b, epoch: 1, next: 2, now: time(3))).isEmpty)
        #expect(names(machine.copyConfirmed(at: c, epoch: 1, next: 3, now: time(3))).isEmpty)
    }

    @Test("Without a standby the primary's own copy is enough")
    func alone() {
        var machine = machine(at: a, owner: a, standby: nil)
        _ = machine.openIngest(1, PublishOffer(epoch: 1, instance: 7, oldest: 0), wallSeconds: 0, now: time(0))
        #expect(names(machine.ingest(1, frames(0..<3), now: time(2))) == ["distribute [0, 1, 2]", "acknowledge 3"])
        #expect(!machine.isProtected)
    }

    @Test("A standby that is silent for a second no longer holds the publisher up, and the channel says so")
    func unprotected() {
        var machine = primary()
        _ = machine.ingest(1, frames(0..<3), now: time(2))
        var acknowledgedAt: UInt64?
        for millisecond in stride(from: UInt64(10), through: 1100, by: 10) where acknowledgedAt == nil {
            if names(machine.tick(now: time(millisecond))) == ["acknowledge 3"] { acknowledgedAt = millisecond }
        }
        #expect(acknowledgedAt.map { (1000...1020).contains($0) } ?? false)
        #expect(!machine.isProtected)
        _ = machine.copyConfirmed(at: b, epoch: 1, next: 3, now: time(1200))
        #expect(machine.isProtected)
    }

    @Test("A stream whose last frames are always on the way counts as protected for ever")
    func pipelined() {
        var machine = primary()
        for number in UInt64(0)..<200 {
            let now = number * 20
            #expect(
                !names(machine.ingest(1, frames(number..<number + 1), now: time(now))).contains(
                    "acknowledge \(number + 1)"))
            if number > 1 { _ = machine.copyConfirmed(at: b, epoch: 1, next: number, now: time(now + 10)) }
            _ = machine.tick(now: time(now + 10))
            #expect(machine.isProtected)
        }
    }

    @Test("A channel that was unprotected is protected again once its standby keeps up, with frames always on the way")
    func protectedAgain() {
        var machine = primary()
        for number in UInt64(0)..<200 {
            let now = number * 20
            _ = machine.ingest(1, frames(number..<number + 1), now: time(now))
            // For 2 s nothing is confirmed, then everything 30 ms after it came.
            if number > 100 { _ = machine.copyConfirmed(at: b, epoch: 1, next: number, now: time(now + 10)) }
            _ = machine.tick(now: time(now + 10))
            if number == 99 { #expect(!machine.isProtected) }
            if number > 105 { #expect(machine.isProtected) }
        }
    }

    @Test("A primary that missed the maps between two of its terms copies anew; a standby says that it was not one")
    func missedMaps() {
        var primary = primary()
        let actions = primary.assign(Machine.Assignment(term: 3, owner: a, standby: b), now: time(5))
        #expect(names(actions) == ["closeCopy", "openCopy b#1"])
        var standby = machine(at: b, owner: a, standby: b)
        _ = standby.openCopy(term: 1, epoch: 1, instance: 7, liveFrom: nil, now: time(1))
        let replaced = standby.assign(Machine.Assignment(term: 1, owner: a, standby: c), now: time(2))
        #expect(names(replaced) == ["refuseCopy"])
        #expect(standby.assign(Machine.Assignment(term: 1, owner: a, standby: b), now: time(3)).isEmpty)
    }

    @Test("What was acknowledged is not taken back when the map names a standby that has less, and it is not protected")
    func otherStandby() {
        var machine = primary()
        _ = machine.ingest(1, frames(0..<3), now: time(2))
        #expect(names(machine.copyConfirmed(at: b, epoch: 1, next: 3, now: time(3))) == ["acknowledge 3"])
        _ = machine.assign(Machine.Assignment(term: 1, owner: a, standby: c), now: time(4))
        let opened = machine.copyOpened(at: c, after: FramePosition(epoch: 1, sequence: 0), now: time(5))
        #expect(names(opened) == ["announcePublisher c#1"])
        #expect(!machine.isProtected)
        #expect(machine.copyConfirmed(at: c, epoch: 1, next: 3, now: time(6)).isEmpty)
        #expect(machine.isProtected)
    }

    @Test("A candidate that is always a little behind the standby counts too")
    func candidateBehind() {
        var machine = primary()
        _ = machine.ingest(1, frames(0..<3), now: time(2))
        _ = machine.copyConfirmed(at: b, epoch: 1, next: 3, now: time(3))
        _ = machine.setCandidate(c, now: time(4))
        _ = machine.copyOpened(at: c, after: FramePosition(epoch: 1, sequence: 0), now: time(5))
        var copiedAt: UInt64?
        for number in UInt64(3)..<40 {
            let now = number * 10
            _ = machine.ingest(1, frames(number..<number + 1), now: time(now))
            _ = machine.copyConfirmed(at: b, epoch: 1, next: number + 1, now: time(now + 1))
            // Four frames later than the standby.
            if number > 4 { _ = machine.copyConfirmed(at: c, epoch: 1, next: number - 3, now: time(now + 2)) }
            if machine.isCopied(to: c), copiedAt == nil { copiedAt = number }
        }
        #expect(copiedAt.map { $0 < 16 } ?? false)
        #expect(machine.isProtected)
    }

    @Test("A primary that was stopped does not hold the silence of that time against its standby (D4)")
    func stopped() {
        var machine = primary()
        _ = machine.ingest(1, frames(0..<3), now: time(2))
        _ = machine.tick(now: time(10))
        #expect(machine.tick(now: time(3000)).isEmpty)
        #expect(names(machine.ingest(1, frames(3..<5), now: time(3001))) == ["distribute [3, 4]"])
    }

    @Test("A gap is asked for once; what comes twice is ignored")
    func gap() {
        var machine = primary()
        _ = machine.ingest(1, frames(0..<3), now: time(2))
        #expect(names(machine.ingest(1, frames(5..<7), now: time(3))) == ["resume 3"])
        #expect(machine.ingest(1, frames(7..<8), now: time(3)).isEmpty)
        #expect(names(machine.ingest(1, frames(2..<5), now: time(4))) == ["distribute [3, 4]"])
    }

    @Test("The first frame of an epoch must be the one that was asked for")
    func firstFrame() {
        var machine = primary()
        #expect(names(machine.ingest(1, frames(1..<2), now: time(2))) == ["resume 0"])
        #expect(names(machine.ingest(1, frames(0..<2), now: time(3))) == ["distribute [0, 1]"])
    }

    @Test("A standby copies, confirms, and as the next primary goes on after its last frame")
    func promotion() {
        var machine = machine(at: b, owner: a, standby: b)
        #expect(
            machine.openCopy(term: 1, epoch: 1, instance: 7, liveFrom: nil, now: time(1)).answer
                == .accepted(after: nil))
        #expect(names(machine.copied(frames(0..<4), term: 1)) == ["distribute [0, 1, 2, 3]", "confirmCopy 4"])
        let actions = machine.assign(Machine.Assignment(term: 2, owner: b, standby: c), now: time(9))
        #expect(names(actions) == ["refuseCopy", "openCopy c#1"])
        #expect(machine.copied(frames(4..<5), term: 1).isEmpty)
        let other = machine.openIngest(1, PublishOffer(epoch: 1, instance: 8, oldest: 0), wallSeconds: 0, now: time(10))
        #expect(other.answer == .refused(ApusError(.stalePublisher)))
        let opened = machine.openIngest(
            2, PublishOffer(epoch: 1, instance: 7, oldest: 2), wallSeconds: 0, now: time(10))
        #expect(opened.answer == .accepted(epoch: 1, next: 4, isProtected: false))
    }

    @Test("A publisher that its owner has not confirmed goes on with the run that is known, and begins nothing else")
    func unconfirmed() {
        var machine = primary()
        func open(_ epoch: UInt32, _ instance: UInt64, resumes: Bool = true, isConfirmed: Bool) -> Machine.IngestAnswer
        {
            machine.openIngest(
                2,
                PublishOffer(
                    epoch: epoch, instance: instance, oldest: 0, resumes: resumes, isConfirmed: isConfirmed),
                wallSeconds: 100, now: time(5)
            ).answer
        }
        let refused = Machine.IngestAnswer.refused(ApusError(.unavailable))
        #expect(open(.max, 8, isConfirmed: false) == refused)
        #expect(open(2, 8, isConfirmed: false) == refused, "a later epoch, of another instance")
        #expect(open(1, 8, isConfirmed: false) == refused, "the known epoch, of another instance")
        #expect(open(2, 7, isConfirmed: false) == refused, "a later epoch, of the known instance")
        #expect(open(0, 7, resumes: false, isConfirmed: false) == refused, "a new run")
        #expect(open(1, 7, isConfirmed: false) == .accepted(epoch: 1, next: 0, isProtected: true))
        // Confirmed it begins anew, with an epoch that the primary gives.
        #expect(open(.max, 8, isConfirmed: true) == .accepted(epoch: 100, next: 0, isProtected: true))
    }

    @Test("A primary that knows no publisher takes an unconfirmed one as little")
    func unconfirmedUnknown() {
        var machine = machine(at: a, owner: a, standby: nil)
        let offer = PublishOffer(epoch: 1, instance: 7, oldest: 0, resumes: true, isConfirmed: false)
        #expect(
            machine.openIngest(1, offer, wallSeconds: 0, now: time(0)).answer == .refused(ApusError(.unavailable)))
        let unnamed = PublishOffer(epoch: 0, instance: 0, oldest: 0, isConfirmed: false)
        #expect(
            machine.openIngest(1, unnamed, wallSeconds: 0, now: time(0)).answer == .refused(ApusError(.unavailable)))
    }

    @Test("A promoted standby that was never told the publisher takes the one that comes")
    func unknownPublisher() {
        var machine = machine(at: b, owner: a, standby: b)
        _ = machine.openCopy(term: 1, epoch: 1, instance: 0, liveFrom: nil, now: time(1))
        _ = machine.copied(frames(0..<4), term: 1)
        _ = machine.assign(Machine.Assignment(term: 2, owner: b, standby: c), now: time(9))
        let opened = machine.openIngest(
            1, PublishOffer(epoch: 1, instance: 7, oldest: 0), wallSeconds: 0, now: time(10))
        #expect(opened.answer == .accepted(epoch: 1, next: 4, isProtected: false))
    }

    @Test("Copies of an older term are refused, and a primary takes none of its own term (D4)")
    func fenced() {
        var standby = machine(at: b, term: 5, owner: a, standby: b)
        #expect(
            standby.openCopy(term: 4, epoch: 1, instance: 7, liveFrom: nil, now: time(1)).answer
                == .refused(ApusError(.staleEpoch)))
        var owner = machine(at: b, term: 5, owner: b, standby: a)
        #expect(
            owner.openCopy(term: 5, epoch: 1, instance: 7, liveFrom: nil, now: time(1)).answer
                == .refused(ApusError(.staleEpoch)))
        #expect(owner.assign(Machine.Assignment(term: 4, owner: a, standby: b), now: time(2)).isEmpty)
        #expect(owner.role == .primary)
    }

    @Test(
        "A primary that is asked to take a copy of a later term steps down before its map says so, and loses no frame")
    func stepsDownForCopy() {
        var machine = primary()
        _ = machine.ingest(1, frames(0..<3), now: time(2))
        let opened = machine.openCopy(term: 2, epoch: 1, instance: 7, liveFrom: nil, now: time(3))
        #expect(opened.answer == .accepted(after: FramePosition(epoch: 1, sequence: 2)))
        #expect(names(opened.actions) == ["closeCopy", "endIngest 1 10009"])
        #expect(names(machine.copied(frames(3..<4), term: 2)) == ["distribute [3]", "confirmCopy 4"])
        #expect(machine.assign(Machine.Assignment(term: 2, owner: b, standby: a), now: time(5)).isEmpty)
        #expect(names(machine.copied(frames(4..<5), term: 2)) == ["distribute [4]", "confirmCopy 5"])
    }

    @Test("A primary that is one no longer ends its publisher's stream and its copy")
    func stepsDown() {
        var machine = primary()
        let actions = machine.assign(Machine.Assignment(term: 2, owner: b, standby: a), now: time(5))
        #expect(names(actions) == ["closeCopy", "endIngest 1 10009"])
        #expect(machine.ingest(1, frames(0..<1), now: time(6)).isEmpty)
    }

    @Test("An edge with viewers subscribes at the primary; where that is lost at the standby, then with delays")
    func edge() {
        var machine = machine(at: c, owner: a, standby: b)
        #expect(names(machine.receiversChanged(hasReceivers: true, now: time(1))) == ["subscribe a#1 after -"])
        #expect(names(machine.subscriptionLost(1, now: time(2))) == ["subscribe b#1 after -"])
        #expect(machine.subscriptionLost(2, now: time(3)).isEmpty)
        #expect(machine.tick(now: time(12)).isEmpty)
        #expect(names(machine.tick(now: time(13))) == ["subscribe a#1 after -"])
        #expect(names(machine.receiversChanged(hasReceivers: false, now: time(14))) == ["unsubscribe"])
    }

    @Test("An edge without frames asks for what its viewer lacks; one with frames goes on after its own last")
    func edgeResumes() {
        var machine = machine(at: c, owner: a, standby: b)
        machine.receiverWants(after: FramePosition(epoch: 1, sequence: 1))
        machine.receiverWants(after: FramePosition(epoch: 1, sequence: 9))
        #expect(names(machine.receiversChanged(hasReceivers: true, now: time(1))) == ["subscribe a#1 after 1:0"])
        _ = machine.subscribed(1, term: 1, liveFrom: nil, now: time(2))
        #expect(names(machine.received(1, frames(2..<5))) == ["distribute [2, 3, 4]"])
        let actions = machine.assign(Machine.Assignment(term: 2, owner: b, standby: a), now: time(3))
        #expect(names(actions) == ["subscribe b#1 after 1:4"])
        #expect(names(machine.received(1, frames(4..<6))) == ["distribute [5]"])
        #expect(names(machine.subscribed(2, term: 2, liveFrom: nil, now: time(4))) == ["unsubscribe"])
        #expect(machine.received(1, frames(6..<7)).isEmpty)
    }

    @Test("An edge begins a little before what its first viewer lacks, for those who come next with less")
    func edgeLead() {
        var machine = machine(at: c, owner: a, standby: b)
        machine.receiverWants(after: FramePosition(epoch: 1, sequence: 200))
        #expect(names(machine.receiversChanged(hasReceivers: true, now: time(1))) == ["subscribe a#1 after 1:72"])
    }

    @Test("A standby with viewers whose primary is lost asks again with pauses, not in a loop")
    func standbyRetries() {
        var machine = machine(at: b, owner: a, standby: b)
        #expect(names(machine.receiversChanged(hasReceivers: true, now: time(1))) == ["subscribe a#1 after -"])
        #expect(machine.subscriptionLost(1, now: time(2)).isEmpty)
        #expect(names(machine.tick(now: time(12))) == ["subscribe a#1 after -"])
    }

    @Test("The clock is wanted only while a subscription is to be tried again, not for ever after")
    func waits() {
        var edge = machine(at: c, owner: a, standby: b)
        _ = edge.receiversChanged(hasReceivers: true, now: time(1))
        #expect(!edge.isWaiting)
        _ = edge.subscriptionLost(1, now: time(2))
        _ = edge.subscriptionLost(2, now: time(3))
        #expect(edge.isWaiting)
        _ = edge.tick(now: time(500))
        #expect(!edge.isWaiting)

        var standby = machine(at: b, owner: a, standby: b)
        _ = standby.receiversChanged(hasReceivers: true, now: time(1))
        _ = standby.subscriptionLost(1, now: time(2))
        #expect(standby.isWaiting)
        _ = standby.openCopy(term: 1, epoch: 1, instance: 7, liveFrom: nil, now: time(3))
        #expect(!standby.isWaiting, "it is fed by the copy")

        var orphan = machine(at: c, owner: a, standby: nil)
        _ = orphan.receiversChanged(hasReceivers: true, now: time(1))
        _ = orphan.subscriptionLost(1, now: time(2))
        _ = orphan.assign(Machine.Assignment(term: 2, owner: nil, standby: nil), now: time(3))
        _ = orphan.tick(now: time(500))
        #expect(!orphan.isWaiting, "there is nobody to ask before the next map")
    }

    @Test("A standby that is replaced goes on as an edge for its viewers, under the same term")
    func standbyReplaced() {
        var machine = machine(at: b, owner: a, standby: b)
        _ = machine.openCopy(term: 1, epoch: 1, instance: 7, liveFrom: nil, now: time(1))
        _ = machine.copied(frames(0..<3), term: 1)
        #expect(machine.receiversChanged(hasReceivers: true, now: time(2)).isEmpty)
        let actions = machine.assign(Machine.Assignment(term: 1, owner: a, standby: c), now: time(3))
        #expect(names(actions) == ["refuseCopy", "subscribe a#1 after 1:2", "beginLive 1:3"])
    }

    @Test("A candidate gets everything beside the standby; once it has it, only what both have is acknowledged (D5)")
    func candidate() {
        var machine = primary()
        _ = machine.ingest(1, frames(0..<3), now: time(2))
        _ = machine.copyConfirmed(at: b, epoch: 1, next: 3, now: time(3))
        #expect(names(machine.setCandidate(c, now: time(4))) == ["openCopy c#1"])
        #expect(!machine.isCopied(to: c))
        // While the candidate catches up the standby alone counts.
        _ = machine.copyOpened(at: c, after: nil, now: time(5))
        _ = machine.ingest(1, frames(3..<4), now: time(5))
        #expect(names(machine.copyConfirmed(at: c, epoch: 1, next: 2, now: time(6))).isEmpty)
        #expect(names(machine.copyConfirmed(at: b, epoch: 1, next: 4, now: time(6))) == ["acknowledge 4"])
        _ = machine.copyConfirmed(at: c, epoch: 1, next: 3, now: time(7))
        #expect(!machine.isCopied(to: c))
        _ = machine.copyConfirmed(at: c, epoch: 1, next: 4, now: time(7))
        #expect(machine.isCopied(to: c))
        // From here on both.
        _ = machine.ingest(1, frames(4..<6), now: time(8))
        #expect(names(machine.copyConfirmed(at: b, epoch: 1, next: 6, now: time(9))).isEmpty)
        #expect(names(machine.copyConfirmed(at: c, epoch: 1, next: 5, now: time(9))) == ["acknowledge 5"])
        #expect(names(machine.copyFailed(at: c, now: time(9))) == ["closeCopy"])
        #expect(!machine.isCopied(to: c))
        #expect(names(machine.tick(now: time(10))).isEmpty)
        // The map names it, and the earlier standby gets no more.
        let actions = machine.assign(Machine.Assignment(term: 1, owner: a, standby: c), now: time(11))
        #expect(names(actions) == ["closeCopy"])
        #expect(names(machine.tick(now: time(30))) == ["openCopy c#1"])
        #expect(
            names(machine.copyOpened(at: c, after: FramePosition(epoch: 1, sequence: 5), now: time(31)))
                == ["announcePublisher c#1", "acknowledge 6"])
    }

    @Test("A candidate that is given up leaves the standby as the one that counts")
    func candidateGivenUp() {
        var machine = primary()
        #expect(names(machine.setCandidate(c, now: time(2))) == ["openCopy c#1"])
        _ = machine.copyOpened(at: c, after: nil, now: time(3))
        _ = machine.ingest(1, frames(0..<3), now: time(4))
        #expect(names(machine.copyConfirmed(at: b, epoch: 1, next: 3, now: time(5))).isEmpty)
        #expect(names(machine.setCandidate(nil, now: time(6))) == ["closeCopy", "acknowledge 3"])
    }

    @Test("A candidate that is silent for a second no longer holds the publisher up; it may not be named then")
    func candidateSilent() {
        var machine = primary()
        _ = machine.setCandidate(c, now: time(2))
        _ = machine.copyOpened(at: c, after: nil, now: time(3))
        #expect(machine.isCopied(to: c))
        _ = machine.ingest(1, frames(0..<3), now: time(4))
        _ = machine.copyConfirmed(at: b, epoch: 1, next: 3, now: time(5))
        var acknowledgedAt: UInt64?
        for millisecond in stride(from: UInt64(10), through: 1100, by: 10) where acknowledgedAt == nil {
            if names(machine.tick(now: time(millisecond))) == ["acknowledge 3"] { acknowledgedAt = millisecond }
        }
        #expect(acknowledgedAt.map { (1000...1040).contains($0) } ?? false)
        #expect(!machine.isCopied(to: c))
        #expect(!machine.isProtected)
        _ = machine.copyConfirmed(at: c, epoch: 1, next: 3, now: time(1200))
        #expect(machine.isCopied(to: c))
        #expect(machine.isProtected)
    }

    @Test("A primary that was just promoted names no standby without the frames that the one before it acknowledged")
    func candidateOfPromoted() {
        var machine = machine(at: b, owner: a, standby: b)
        _ = machine.openCopy(term: 1, epoch: 1, instance: 7, liveFrom: nil, now: time(1))
        _ = machine.copied(frames(0..<4), term: 1)
        _ = machine.assign(Machine.Assignment(term: 2, owner: b, standby: c), now: time(2))
        _ = machine.setCandidate(a, now: time(3))
        _ = machine.copyOpened(at: a, after: FramePosition(epoch: 1, sequence: 2), now: time(4))
        #expect(!machine.isCopied(to: a))
        _ = machine.copyConfirmed(at: a, epoch: 1, next: 4, now: time(5))
        #expect(!machine.isCopied(to: c))
        #expect(machine.setCandidate(a, now: time(6)).isEmpty)
        _ = machine.openIngest(1, PublishOffer(epoch: 1, instance: 7, oldest: 2), wallSeconds: 0, now: time(7))
        _ = machine.tick(now: time(8))
        #expect(machine.isCopied(to: a))
    }

    @Test("A channel that nobody uses ends its copy, and copies again for the next publisher")
    func release() {
        var machine = primary()
        _ = machine.ingest(1, frames(0..<3), now: time(2))
        #expect(machine.release().isEmpty)
        machine.closeIngest(1)
        #expect(names(machine.release()) == ["closeCopy"])
        #expect(machine.tick(now: time(50)).isEmpty)
        #expect(machine.isCopied(to: b))
        let opened = machine.openIngest(
            2, PublishOffer(epoch: 2, instance: 9, oldest: 0), wallSeconds: 0, now: time(60))
        #expect(names(opened.actions) == ["openCopy b#1"])
    }
}
