import ApusCore
import ApusDevice
import Testing

@Suite("The authorization of a voice client (VA-3, VA-4, RFC 8628)")
struct VoiceAuthorizationTests {
    /// A machine with clocks that a test moves.
    private struct Client {
        var machine = VoiceAuthorizationStateMachine()
        var now = VoiceTime(wall: 1_800_000_000, up: .zero)
        /// What happened since the last look.
        var actions: [VoiceAuthorizationStateMachine.Action] = []
        /// The last question.
        var question = 0
        var used: [VoiceToken] = []
        var states: [VoiceAuthorizationState] = []

        mutating func note(_ new: [VoiceAuthorizationStateMachine.Action]) {
            actions = new
            for action in new {
                switch action {
                case .requestCodes(let number), .poll(let number, _), .refresh(let number, _): question = number
                case .use(let token): used.append(token)
                case .report(let state, _): states.append(state)
                case .show, .store, .erase: break
                }
            }
        }

        mutating func start(_ token: VoiceToken? = nil) { note(machine.start(token, now)) }
        mutating func answer(_ answer: VoiceAnswer) { note(machine.answered(question, answer, now)) }

        mutating func codes(lifetime: Duration = .seconds(600)) {
            note(
                machine.codesReceived(
                    question,
                    .success(
                        VoiceCodes(
                            deviceCode: "d\(question)",
                            shown: VoiceAuthorization(url: "u", userCode: "c\(question)", completeURL: "u?c"),
                            lifetime: lifetime, interval: .seconds(5))), now))
        }

        /// Both clocks go on.
        mutating func pass(_ seconds: Int64) {
            (now.wall, now.up) = (now.wall + seconds, now.up + .seconds(seconds))
            note(machine.tick(now))
        }

        /// The wall clock is set.
        mutating func set(by seconds: Int64) {
            now.wall += seconds
            note(machine.tick(now))
        }

        var isAsking: Bool {
            actions.contains { action in
                switch action {
                case .requestCodes, .poll, .refresh: true
                case .show, .report, .store, .use, .erase: false
                }
            }
        }
    }

    private static func token(age: Int64 = 0, lifetime: Int64 = 900) -> VoiceToken {
        VoiceToken(
            token: "t", refresh: "r", received: 1_800_000_000 - age, expires: 1_800_000_000 - age + lifetime)
    }

    @Test("Without a token it shows a code, and asks until a person has approved (VA-3)")
    func approval() {
        var client = Client()
        client.start()
        #expect(client.states == [.uninitialized] && client.machine.reported == .uninitialized)
        client.codes()
        #expect(client.actions == [.show(VoiceAuthorization(url: "u", userCode: "c1", completeURL: "u?c"))])
        client.pass(4)
        #expect(client.actions.isEmpty, "before the interval")
        client.pass(1)
        #expect(client.actions == [.poll(2, deviceCode: "d1")])
        client.answer(.pending)
        client.pass(5)
        #expect(client.actions == [.poll(3, deviceCode: "d1")])
        client.answer(.slowDown)
        client.pass(9)
        #expect(client.actions.isEmpty, "RFC 8628 §3.5: five seconds more")
        client.pass(1)
        client.answer(.token("t", refresh: "r", lifetime: 900))
        #expect(client.states == [.uninitialized, .refreshed] && client.used.map(\.token) == ["t"])
        #expect(client.used.map(\.expires) == [client.now.wall + 900])
    }

    @Test("A refusal ends it, and an expired code is followed by another one (VA-3)")
    func endings() {
        var client = Client()
        client.start()
        client.codes(lifetime: .seconds(30))
        client.pass(5)
        client.answer(.failed(ApusError(.connectFailed)))
        client.pass(26)
        #expect(client.actions == [.requestCodes(3)], "the code has expired")
        client.codes()
        client.pass(5)
        client.answer(.invalid)
        #expect(!client.isAsking)
        client.pass(1)
        #expect(client.actions == [.requestCodes(5)])
        client.codes()
        client.pass(5)
        client.answer(.denied)
        #expect(client.states == [.uninitialized, .unrecoverableError])
        client.pass(10_000)
        #expect(!client.isAsking, "nothing more is asked")
        client.note(client.machine.reset())
        #expect(client.actions.first == .erase && client.states.last == .uninitialized && client.isAsking)
    }

    @Test("A token of the database is used at once, and refreshed before it expires (VA-2, VA-4)")
    func restart() {
        var client = Client()
        client.start(Self.token(age: 100))
        #expect(client.states == [.refreshed] && client.used == [Self.token(age: 100)] && !client.isAsking)
        #expect(client.machine.nextTick == .zero + .seconds(500), "after two thirds of the lifetime")
        client.pass(499)
        #expect(!client.isAsking)
        client.pass(1)
        #expect(client.actions == [.refresh(1, token: "r")])
        client.answer(.token("t2", refresh: "r2", lifetime: 900))
        #expect(client.states == [.refreshed, .refreshed] && client.used.last?.refresh == "r2")
        #expect(!client.states.contains(.expired))
    }

    @Test("A cluster that cannot be reached lets the token expire, and the next answer mends it (VA-4)")
    func expiry() {
        var client = Client()
        client.start(Self.token())
        client.pass(600)
        for _ in 0..<9 {
            client.answer(.failed(ApusError(.connectFailed)))
            client.pass(60)
        }
        #expect(client.states == [.refreshed, .expired] && client.machine.reported == .expired)
        client.answer(.token("t2", refresh: "r2", lifetime: 900))
        #expect(client.states == [.refreshed, .expired, .refreshed])
        client = Client()
        client.start(Self.token(age: 1000))
        #expect(client.states == [.expired] && client.isAsking && client.used.isEmpty, "it was off for too long")
    }

    @Test(
        "A wall clock that is set forward or back is no reason to lose the token (VA-4)",
        arguments: [
            -1_700_000_000, -86_400, -31, 600, 900, 86_400, 1_000_000_000,
        ])
    func movedClock(seconds: Int64) {
        var client = Client()
        client.start(Self.token())
        client.set(by: seconds)
        #expect(client.actions.last == .refresh(1, token: "r"), "\(client.actions)")
        #expect(client.states.last == (seconds >= 900 ? .expired : .refreshed))
        client.answer(.token("t2", refresh: "r2", lifetime: 900))
        #expect(client.machine.reported == .refreshed)
        client.pass(599)
        #expect(!client.isAsking, "the new token is by the new clock")
        client.pass(1)
        #expect(client.isAsking)
        // The same with a start at a time before that of the token.
        var started = Client()
        started.now.wall += seconds
        started.start(Self.token())
        #expect(started.isAsking && (started.states.contains(.refreshed) || seconds >= 900), "\(started.states)")
    }

    @Test("A small step of the wall clock changes nothing")
    func smallStep() {
        var client = Client()
        client.start(Self.token())
        client.set(by: -30)
        #expect(!client.isAsking)
        client.set(by: 60)
        #expect(!client.isAsking)
    }

    @Test("A revoked token is unrecoverable once its refresh token is refused too (VA-4)")
    func revoked() {
        var client = Client()
        client.start(Self.token())
        client.machine.sessionOpened()
        client.pass(10)
        client.note(client.machine.sessionRefused(client.now))
        #expect(client.actions == [.refresh(1, token: "r")], "the session says that it is not valid")
        client.answer(.invalid)
        #expect(client.states == [.refreshed, .unrecoverableError])
    }

    @Test("A new token that sessions refuse is not refreshed in a loop, such as of a disabled device")
    func refusedAgain() {
        var client = Client()
        client.start(Self.token())
        client.machine.sessionOpened()
        var asked = 0
        for _ in 0..<1300 {
            client.note(client.machine.sessionRefused(client.now))
            if client.isAsking {
                asked += 1
                client.answer(.token("t\(asked)", refresh: "r\(asked)", lifetime: 900))
            }
            client.pass(1)
            if client.isAsking {
                asked += 1
                client.answer(.token("t\(asked)", refresh: "r\(asked)", lifetime: 900))
            }
        }
        // At the first refusal, and whenever a token has lived for two thirds of its 900 s.
        #expect((2...4).contains(asked), "\(asked) in 1,300 s")
    }

    @Test(
        "Whatever comes in whatever order: one question at a time, and every state has its reason (VA-4)",
        arguments: 0..<500)
    func walk(seed: Int) {
        var generator = Numbers(state: UInt64(seed) &+ 7)
        var client = Client()
        client.start(Bool.random(using: &generator) ? Self.token(age: .random(in: 0...2000, using: &generator)) : nil)
        var isWaiting = client.isAsking
        for _ in 0..<200 {
            let before = client.machine.reported
            switch Int.random(in: 0..<8, using: &generator) {
            case 0, 1: client.pass(.random(in: 0...400, using: &generator))
            case 2: client.set(by: .random(in: -4000...4000, using: &generator))
            case 3:
                client.codes(lifetime: .seconds(.random(in: 1...900, using: &generator)))
                if !client.actions.isEmpty { isWaiting = false }
            case 4:
                let answers: [VoiceAnswer] = [
                    .token("t", refresh: "r", lifetime: 900), .pending, .slowDown, .denied, .invalid,
                    .failed(ApusError(.linkLost)),
                ]
                let nextBefore = client.machine.nextTick
                client.answer(answers.randomElement(using: &generator) ?? .pending)
                if !client.actions.isEmpty || client.machine.nextTick != nextBefore { isWaiting = false }
            case 5:
                // An answer to an earlier question has no effect.
                let old = client.machine.reported
                client.note(client.machine.answered(client.question - 1, .invalid, client.now))
                #expect(client.actions.isEmpty && client.machine.reported == old, "seed \(seed)")
            case 6: client.note(client.machine.sessionRefused(client.now))
            default:
                if Int.random(in: 0..<10, using: &generator) == 0 {
                    client.note(client.machine.reset())
                    isWaiting = false
                } else {
                    client.note(client.machine.hurry(client.now))
                }
            }
            let questions = client.actions.count { action in
                switch action {
                case .requestCodes, .poll, .refresh: true
                case .show, .report, .store, .use, .erase: false
                }
            }
            #expect(questions <= 1, "seed \(seed): \(client.actions)")
            if questions == 1 { isWaiting = true }
            // A state that changes is reported, and nothing wakes a client that has ended.
            let after = client.machine.reported
            if after != before {
                let isReported = client.actions.contains { if case .report(after, _) = $0 { true } else { false } }
                #expect(isReported, "seed \(seed)")
            }
            if after == .unrecoverableError { #expect(client.machine.nextTick == nil, "seed \(seed)") }
            // What has not ended either waits for an answer, or for a time.
            if after != .unrecoverableError {
                #expect(client.machine.nextTick != nil || isWaiting, "seed \(seed): it sleeps for ever")
            }
        }
    }
}

/// Random numbers of a seed (SplitMix64).
private struct Numbers: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var z = state
        z = (z ^ (z >> 30)) &* 0xbf58_476d_1ce4_e5b9
        z = (z ^ (z >> 27)) &* 0x94d0_49bb_1331_11eb
        return z ^ (z >> 31)
    }
}
