import ApusCore
import ApusHTTP
import ApusMedia
import NIOCore
import Testing

@Suite("Random steps of an EVS connection (docs/evs.md)")
struct EVSRandomTests {
    private typealias Machine = EVSConnectionStateMachine

    private static let now = MonotonicTime.zero + .seconds(1000)

    @Test(
        "In 100,000 random steps each request is answered once, and the bounds hold",
        arguments: 1...4 as ClosedRange<UInt64>)
    func random(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        let limits = Machine.Limits()
        var answered = 0
        for _ in 0..<500 {
            var run = Run()
            for _ in 0..<50 {
                run.step(&random)
                #expect(run.isClosed || run.machine.openCount == run.open.count)
                #expect(run.machine.openCount <= limits.requestsMax)
            }
            answered += run.answered
        }
        #expect(answered > 2000)
    }

    /// A connection, and what is known of it.
    private struct Run {
        var machine = Machine()
        /// The requests without an answer.
        var open: Set<String> = []
        var answered = 0
        var isClosed = false
        private var calls: [UInt32: Machine.Call] = [:]
        private var (lastRequest, isSigningIn, isOpen) = (0, false, false)
        private var (sentence, isSpeaking) = (0, false)

        mutating func step(_ random: inout SeededRandom) {
            let isTrue = Bool.random(using: &random)
            switch Int.random(in: 0..<13, using: &random) {
            case 0: change { $0.connected(token: isTrue ? "t" : nil, &$1) }
            case 1 where isSigningIn:
                (isSigningIn, isOpen) = (false, true)
                change { $0.opened(as: "speaker", at: EVSRandomTests.now, seconds: 1, &$1) }
            case 2...5 where !isClosed: request(isSpoken: isTrue, hasToken: Int.random(in: 0..<20, using: &random) > 0)
            case 6 where isOpen && !isClosed:
                let id = "c\(lastRequest)"
                change { $0.received(command: id, isAction: isTrue, directive: nil, &$1) }
            case 7 where !isClosed: change { $0.receivedWrong(ApusError(.malformed), &$1) }
            case 8 where !isClosed: change { $0.received(sound: ByteBuffer(repeating: 1, count: 64), &$1) }
            case 9 where !isClosed: sound(Int.random(in: 0..<4, using: &random))
            case 10 where isSpeaking:
                let sentence = sentence
                change { $0.began(sentence, at: FramePosition(epoch: 1, sequence: 7), &$1) }
            default: answer(&random)
            }
        }

        private mutating func request(isSpoken: Bool, hasToken: Bool) {
            lastRequest += 1
            var request = EVSRequest(
                name: isSpoken ? "recognizer.audio_in" : "recognizer.text_in", id: "\(lastRequest)",
                payload: .object([.init(name: "query", value: .string("a"))]))
            request.token = hasToken ? "t" : nil
            open.insert(request.id)
            change { $0.received(request, sentence: "s", &$1) }
        }

        private mutating func sound(_ kind: Int) {
            switch kind {
            case 0: change { $0.soundEnded(&$1) }
            case 1: change { $0.soundCancelled(&$1) }
            case 2 where isSpeaking: change { $0.microphoneFailed(ApusError(.linkLost), &$1) }
            default: change { $0.heard("s", "a", &$1) }
            }
        }

        private mutating func answer(_ random: inout SeededRandom) {
            guard let id = calls.keys.sorted().randomElement(using: &random) else { return }
            let turn = Machine.Turn(id: "t", reply: "r", asks: Bool.random(using: &random))
            var answer = Machine.Answer.done
            switch calls.removeValue(forKey: id) {
            case .say: answer = .turn(turn)
            case .listen: answer = .heard(.init(text: "a", turn: turn, address: nil))
            default: break
            }
            if Int.random(in: 0..<4, using: &random) == 0 { answer = .failed(ApusError(.linkLost)) }
            change { $0.answered(id, answer, &$1) }
        }

        private mutating func change(_ body: (inout Machine, inout [Machine.Action]) -> Void) {
            var actions: [Machine.Action] = []
            body(&machine, &actions)
            for action in actions { check(action) }
        }

        private mutating func check(_ action: Machine.Action) {
            #expect(!isClosed, "nothing follows the end")
            switch action {
            case .signIn:
                #expect(!isSigningIn && !isOpen)
                isSigningIn = true
            case .ask(let id, let call):
                #expect(isOpen && calls[id] == nil)
                calls[id] = call
            case .cancel(let id): #expect(calls.removeValue(forKey: id) != nil)
            case .send(let responses):
                guard !responses.requestID.isEmpty else { return }
                #expect(open.contains(responses.requestID), "an answer too many")
                guard responses.isLast else { return }
                open.remove(responses.requestID)
                answered += 1
            case .begin(let number):
                #expect(number > sentence && !isSpeaking, "one sentence at a time")
                (sentence, isSpeaking) = (number, true)
            case .sound, .silence: #expect(isSpeaking, "sound without a sentence")
            case .end:
                #expect(isSpeaking)
                isSpeaking = false
            case .close:
                isClosed = true
                open = []
            }
        }
    }
}
