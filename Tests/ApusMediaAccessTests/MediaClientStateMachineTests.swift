import ApusCore
import ApusMediaAccess
import Testing

@Suite("What a client may publish and play, and what waits (IV-A5, CALL-13)")
struct MediaClientStateMachineTests {
    private typealias Machine = MediaClientStateMachine<Int>

    private static let device = DeviceID(unchecked: "cam")
    private static let call = CallID(unchecked: "a")
    private static let own = ChannelID(call: call, side: .caller)
    private static let other = ChannelID(call: call, side: .winner)
    private static let right = MediaRight(publishes: own, plays: [other], devices: [])

    private static func machine(isDevice: Bool = false, isConfirmed: Bool = true, streamsMax: Int = 2) -> Machine {
        Machine(device: isDevice ? device : nil, isConfirmed: isConfirmed, streamsMax: streamsMax)
    }

    /// In words, so that a table can have it.
    private func text(_ decision: Machine.OnPublish) -> String {
        switch decision {
        case .publish(let channel, let isConfirmed): "publish \(channel) \(isConfirmed ? "confirmed" : "unconfirmed")"
        case .resume(_, let channel, let isConfirmed): "resume \(channel) \(isConfirmed ? "confirmed" : "unconfirmed")"
        case .ask(let owner): "ask \(owner)"
        case .wait: "wait"
        case .refuse(let error): "\(error.code.number)"
        }
    }

    private func text(_ decision: Machine.OnHold) -> String {
        switch decision {
        case .again: "again"
        case .wait: "wait"
        case .refuse(let error): "\(error.code.number)"
        }
    }

    private func text(_ decision: Machine.OnPlay) -> String {
        switch decision {
        case .play(let channel): "play \(channel)"
        case .resume(_, let channel): "resume \(channel)"
        case .inspect(let device, let control): "inspect \(device) \(control)"
        case .ask(let owner): "ask \(owner)"
        case .refuse(let error): "\(error.code.number)"
        }
    }

    private static let publishes: [(Bool, Bool, MediaTarget, Bool, ChannelID?, String)] = [
        (true, true, .source(3), false, nil, "publish cam/3 confirmed"),
        (true, true, .source(3), true, nil, "publish cam/3 confirmed"),
        (true, false, .source(3), false, nil, "wait"),
        (true, false, .source(3), true, nil, "publish cam/3 unconfirmed"),
        (false, true, .source(3), true, nil, "12004"),
        (false, false, .source(3), false, nil, "12004"),
        (false, true, .part(.call(call)), false, nil, "ask call.a"),
        (false, true, .part(.call(call)), false, own, "ask call.a"),
        (false, true, .part(.call(call)), true, nil, "ask call.a"),
        (false, true, .part(.call(call)), true, own, "resume call.a/0 unconfirmed"),
        (false, false, .part(.call(call)), false, own, "wait"),
        (false, false, .part(.call(call)), true, nil, "wait"),
        (true, false, .part(.call(call)), true, own, "resume call.a/0 unconfirmed"),
    ]

    @Test("What a client publishes depends on its session, its run and its grant", arguments: publishes.indices)
    func publish(row: Int) {
        let (isDevice, isConfirmed, target, continuesRun, granted, expected) = Self.publishes[row]
        var machine = Self.machine(isDevice: isDevice, isConfirmed: isConfirmed)
        let decision = machine.publish(target, continuesRun: continuesRun, granted: granted, streamCount: 1, 7)
        #expect(text(decision) == expected)
        let full = machine.publish(target, continuesRun: continuesRun, granted: granted, streamCount: 2, 8)
        #expect(text(full) == (expected == "12004" ? expected : "\(ErrorCode.tooManyStreams.number)"))
        // What waits, and nothing else, comes back once the session is confirmed.
        let waited: [Int]? = isConfirmed ? nil : expected == "wait" ? [7] : []
        #expect(machine.sessionConfirmed() == waited)
        #expect(machine.sessionConfirmed() == nil)
    }

    @Test("What waits is bounded, and can be taken back")
    func held() {
        var machine = Self.machine(isDevice: true, isConfirmed: false)
        for ask in [1, 2] {
            let decision = machine.publish(.source(0), continuesRun: false, granted: nil, streamCount: 0, ask)
            #expect(text(decision) == "wait")
        }
        let third = machine.publish(.source(0), continuesRun: false, granted: nil, streamCount: 0, 3)
        #expect(text(third) == "\(ErrorCode.overloaded.number)")
        #expect(machine.withdraw(where: { $0 == 1 }) == [1])
        #expect(text(machine.hold(4)) == "wait")
        #expect(machine.sessionConfirmed() == [2, 4])
        #expect(text(machine.hold(5)) == "again")
    }

    @Test("With a grant a stream may start runs once both the session and the call are confirmed")
    func rights() {
        var machine = Self.machine(isConfirmed: false)
        let owner = ChannelOwner.call(Self.call)
        #expect(!machine.mayStartRuns(of: owner) && !machine.mayStartRuns(of: .device(Self.device)))
        machine.confirmed(owner, Self.right)
        #expect(!machine.mayStartRuns(of: owner) && machine.right(to: owner) == Self.right)
        _ = machine.sessionConfirmed()
        #expect(machine.mayStartRuns(of: owner) && machine.mayStartRuns(of: .device(Self.device)))
        machine.ended(owner)
        #expect(!machine.mayStartRuns(of: owner) && machine.right(to: owner) == nil)
    }

    @Test("A grant lets a client play at once. Otherwise the owner is asked, for a recording about control")
    func play() {
        var machine = Self.machine(streamsMax: 8)
        let recording = ChannelID(device: Self.device, source: 32_768)
        let live = ChannelID(device: Self.device)
        func ask(_ channel: ChannelID, _ isGranted: Bool) -> String {
            text(machine.play(channel, of: Self.device, isGranted: isGranted, streamCount: 0))
        }
        #expect(ask(live, true) == "play cam/0" && ask(live, false) == "inspect cam false")
        #expect(ask(recording, true) == "play cam/32768" && ask(recording, false) == "inspect cam true")
        let owner = ChannelOwner.call(Self.call)
        let resumed = machine.play(partOf: owner, granted: Self.other, streamCount: 0)
        let asked = machine.play(partOf: owner, granted: nil, streamCount: 0)
        let full = machine.play(partOf: owner, granted: Self.other, streamCount: 8)
        #expect(text(resumed) == "resume call.a/1" && text(asked) == "ask call.a")
        #expect(text(full) == "\(ErrorCode.tooManyStreams.number)")
    }

    @Test("No more is asked at once than the limit of streams, until an answer comes")
    func asking() {
        var machine = Self.machine()
        let owner = ChannelOwner.call(Self.call)
        func ask() -> String { text(machine.play(partOf: owner, granted: nil, streamCount: 0)) }
        #expect(ask() == "ask call.a" && ask() == "ask call.a")
        #expect(ask() == "\(ErrorCode.overloaded.number)")
        machine.answered()
        #expect(ask() == "ask call.a")
        machine.answered(by: owner, with: Self.right)
        #expect(machine.right(to: owner) == Self.right)
        #expect(ask() == "ask call.a" && ask() == "\(ErrorCode.overloaded.number)")
    }
}
