import ApusClient
import ApusContract
import ApusCore
import Testing

@Suite("What a device shows of its dialog, and how its sentences and events are sent (VA-6, VA-13, VA-15)")
struct VoiceMachineTests {
    private typealias Phase = ClientDialogPhase

    // MARK: - The phases

    @Test("The names of phases and their spellings in earlier contracts are read (VA-6)")
    func names() {
        for (text, phase) in [
            ("UDISCONNECT", Phase.disconnected), ("DISCONNECTED", .disconnected), ("PENDING", .pending),
            ("IDLE", .idle), ("LISTENING", .listening), ("thinking", .thinking), ("SPERAKER", .speaking),
            ("SPEAKING", .speaking), ("FINISH", .finished), ("FINISHED", .finished),
        ] {
            #expect(Phase(named: text) == phase, "\(text)")
        }
        for phase in VoiceMachineTests.phases { #expect(Phase(named: phase.name) == phase) }
        for text in ["", "SPEAKER", "IDLE ", "DIALOG_PHASE_IDLE", "UNSPECIFIED"] { #expect(Phase(named: text) == nil) }
    }

    private static let phases: [Phase] = [
        .disconnected, .pending, .idle, .listening, .thinking, .speaking, .finished,
    ]

    @Test("A connection leads over PENDING to IDLE, and what was missed is shown by the legal way (VA-6)")
    func ways() {
        var machine = VoiceStateMachine()
        #expect(machine.connecting() == [.pending] && machine.connecting().isEmpty)
        #expect(machine.changed([.listening], version: 5).isEmpty, "it has not synchronized")
        #expect(machine.synchronized(.speaking, version: 7) == [.idle, .listening, .thinking, .speaking])
        #expect(machine.changed([.finished, .idle], version: 7).isEmpty, "an earlier change")
        #expect(machine.changed([.finished, .idle], version: 8) == [.finished, .idle])
        #expect(machine.changed([.speaking], version: 12) == [.listening, .thinking, .speaking])
        #expect(machine.changed([.listening], version: 13) == [.listening])
        #expect(machine.changed([.listening], version: 14) == [.listening], "a tap begins again")
        #expect(machine.ended() == [.idle] && machine.ended().isEmpty)
        #expect(machine.disconnected() == [.disconnected] && machine.disconnected().isEmpty)
        // Another cluster may count from less.
        #expect(machine.connecting() == [.pending] && machine.synchronized(.idle, version: 1) == [.idle])
        #expect(machine.connecting() == [.disconnected, .pending], "a connection in place of another one")
    }

    @Test("A random walk never shows an illegal change (VA-6)", arguments: 0..<20 as Range<UInt64>)
    func randomWalk(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var machine = VoiceStateMachine()
        var shown = Phase.disconnected
        var count = 0
        for version in 1..<20_000 as Range<UInt64> {
            let next: [Phase]
            switch Int.random(in: 0..<20, using: &random) {
            case 0: next = machine.connecting()
            case 1: next = machine.disconnected()
            case 2, 3: next = machine.synchronized(Self.phases.randomElement(using: &random) ?? .idle, version: version)
            case 4: next = machine.ended()
            default:
                let phases = (0..<3).map { _ in Self.phases[2...].randomElement(using: &random) ?? .idle }
                let past = Bool.random(using: &random) ? version : version / 2
                next = machine.changed(phases, version: past)
            }
            for phase in next {
                #expect(VoiceStateMachine.following(shown).contains(phase), "\(phase) after \(shown)")
                shown = phase
                count += 1
            }
            #expect(machine.phase == shown)
        }
        #expect(count > 5_000)
    }

    // MARK: - Uploads

    @Test("Uploads go one at a time and in order, after the dialog was synchronized (VA-13, VA-15)")
    func order() {
        var machine = UploadStateMachine()
        #expect(machine.add(1) == [.report(1, .notConnected, message: "the device is not connected")])
        #expect(machine.connected() == [.synchronize])
        guard case .report(2, .notSynchronized, _)? = machine.add(2).first else { Issue.record("sent"); return }
        #expect(machine.synchronized().isEmpty)
        #expect(machine.add(3) == [.report(3, .pending, message: ""), .send(3)])
        #expect(machine.add(4) == [.report(4, .pending, message: "")], "one at a time")
        #expect(machine.add(5) == [.report(5, .pending, message: "")])
        #expect(machine.answered(4, .success, "").isEmpty, "it is not being sent")
        #expect(machine.answered(3, .success, "") == [.report(3, .success, message: ""), .send(4)])
        #expect(machine.cancel(5) == [.report(5, .canceled, message: "withdrawn")])
        #expect(machine.cancel(4) == [.abort(4), .report(4, .canceled, message: "withdrawn")])
        #expect(machine.answered(4, .success, "").isEmpty && machine.count == 0)
    }

    @Test("A lost connection fails what waits, and the next one synchronizes first (VA-15)")
    func reconnects() {
        var machine = UploadStateMachine()
        _ = machine.connected() + machine.synchronized() + machine.add(1) + machine.add(2)
        #expect(
            machine.disconnected() == [
                .abort(1), .report(1, .notConnected, message: "the connection was lost"),
                .report(2, .notConnected, message: "the connection was lost"),
            ])
        #expect(machine.connected() == [.synchronize])
        _ = machine.synchronized() + machine.add(3)
        // The node says that it has not been synchronized: the connection was replaced in between.
        #expect(
            machine.answered(3, .notSynchronized, "why")
                == [.report(3, .notSynchronized, message: "why"), .synchronize])
        guard case .report(4, .notSynchronized, _)? = machine.add(4).first else { Issue.record("sent"); return }
    }

    @Test("The uploads that wait are bounded")
    func bounded() {
        var machine = UploadStateMachine()
        _ = machine.connected() + machine.synchronized()
        for id in 1...UInt64(UploadStateMachine.countMax) { _ = machine.add(id) }
        guard case .report(99, .throttled, _)? = machine.add(99).first else { Issue.record("it is added"); return }
        #expect(machine.count == UploadStateMachine.countMax)
        #expect(machine.cancelAll().count == UploadStateMachine.countMax + 1 && machine.count == 0)
    }

    @Test("Random uploads end once each, and are sent in order", arguments: 0..<20 as Range<UInt64>)
    func randomUploads(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var machine = UploadStateMachine()
        var (last, sent): (UInt64, UInt64) = (0, 0)
        var open: Set<UInt64> = []
        var current: UInt64?
        for _ in 0..<20_000 {
            let actions: [UploadStateMachine.Action]
            switch Int.random(in: 0..<20, using: &random) {
            case 0: actions = machine.connected()
            case 1: actions = machine.disconnected()
            case 2..<5: actions = machine.synchronized()
            case 5: actions = machine.cancel(UInt64.random(in: 0...max(1, last), using: &random))
            case 6: actions = machine.answered(current ?? 0, .notSynchronized, "")
            case 7..<12: actions = machine.answered(current ?? 0, .success, "")
            default:
                last += 1
                open.insert(last)
                actions = machine.add(last)
            }
            for action in actions {
                switch action {
                case .send(let id):
                    #expect(current == nil && id > sent && open.contains(id), "\(id) is sent")
                    (current, sent) = (id, id)
                case .abort(let id):
                    #expect(current == id)
                    current = nil
                case .report(let id, let state, _):
                    guard state.isEnd else { continue }
                    #expect(open.remove(id) != nil, "\(id) ends twice")
                    if current == id { current = nil }
                case .synchronize: #expect(current == nil)
                }
            }
            #expect(machine.count == open.count)
        }
        #expect(sent > 1_000)
    }

    @Test("Each HTTP status has its state (VA-13)")
    func statuses() {
        for (status, state) in [
            (200, UploadState.success), (204, .successNoContent), (400, .badRequest), (403, .invalidAuth),
            (429, .throttled), (500, .serverInternalError), (502, .serverOtherError), (503, .serverOtherError),
            (599, .serverOtherError), (404, .refused), (301, .protocolError), (0, .protocolError),
            (600, .protocolError),
        ] {
            #expect(UploadState(httpStatus: status) == state, "\(status)")
        }
        #expect(UploadState.allCases.count == 13)
    }
}
