import ApusCore
import ApusSpeech
import ApusTestKit
import Testing

@Suite("The end of what a person says (VA-7, docs/voice.md)")
struct HearingStateMachineTests {
    private static let quiet: UInt64 = 100
    private static let speech: UInt64 = 1_000_000

    /// Feeds windows, and answers each question after a delay in windows.
    private struct Ear {
        var machine: HearingStateMachine
        var actions: [HearingStateMachine.Action] = []
        var answer = HearingStateMachine.Answer()
        var delay = 2
        private var waiting: [(number: Int, at: Int64)] = []

        init(
            _ limits: HearingLimits = HearingLimits(), _ answer: HearingStateMachine.Answer = .init(), delay: Int = 2
        ) {
            (machine, self.answer, self.delay) = (HearingStateMachine(limits), answer, delay)
        }

        mutating func hear(_ power: UInt64, milliseconds: Int) {
            for _ in 0..<milliseconds / 20 where machine.end == nil {
                var new: [HearingStateMachine.Action] = []
                machine.heard(power: power, &new)
                for case .ask(let number, let at, _) in new { waiting.append((number, at + Int64(delay) * 20_000)) }
                for question in waiting where question.at <= machine.now {
                    machine.answered(question.number, answer, &new)
                }
                waiting.removeAll { [now = machine.now] in $0.at <= now }
                actions += new
            }
        }

        var endMs: Int64 { machine.now / 1000 }
        /// The silence that was waited for, in milliseconds.
        var waitedMs: Int64 { (machine.now - machine.speechEnd) / 1000 }
    }

    private static let whole = HearingStateMachine.Answer(text: "stop", isWhole: true)

    @Test(
        "A whole sentence ends after 200 ms of silence, one that can go on after 500, and others after 1,300",
        arguments: [
            (HearingStateMachine.Answer(text: "turn on the light", isWhole: true), HearingEnd.sentence, Int64(200)),
            (.init(text: "make it warmer", isWhole: true, isBeginning: true), .sentence, 500),
            (.init(text: "turn on"), .silence, 1300),
        ])
    func silences(_ answer: HearingStateMachine.Answer, _ end: HearingEnd, _ waited: Int64) {
        var ear = Ear(HearingLimits(), answer)
        ear.hear(Self.quiet, milliseconds: 500)
        ear.hear(Self.speech, milliseconds: 1200)
        ear.hear(Self.quiet, milliseconds: 3000)
        #expect(ear.machine.end == end && ear.waitedMs == waited, "\(ear.actions)")
        #expect(ear.machine.speechEnd == 1_700_000)
    }

    @Test("Speech begins after 60 ms of sound, and again after each pause (VA-7)")
    func beginning() {
        var ear = Ear(HearingLimits(), .init(text: "turn on"))
        ear.hear(Self.quiet, milliseconds: 500)
        ear.hear(Self.speech, milliseconds: 300)
        ear.hear(Self.quiet, milliseconds: 300)
        ear.hear(Self.speech, milliseconds: 300)
        let sounds = ear.actions.filter { action in
            switch action {
            case .began, .resumed: true
            case .ask, .ended: false
            }
        }
        #expect(sounds == [.began(at: 560_000), .resumed(at: 1_160_000)])
    }

    @Test("A word of 0.4 s ends like a sentence (field report 1)")
    func short() {
        var ear = Ear(HearingLimits(), Self.whole)
        ear.hear(Self.quiet, milliseconds: 200)
        ear.hear(Self.speech, milliseconds: 400)
        ear.hear(Self.quiet, milliseconds: 1000)
        #expect(ear.machine.end == .sentence && ear.endMs == 800)
    }

    @Test("Sound that begins with speech has no silence before it, and is heard all the same (field report 5)")
    func atOnce() {
        var ear = Ear(HearingLimits(), Self.whole)
        // The first window is the beginning of a word: quieter than the word.
        ear.hear(5000, milliseconds: 20)
        ear.hear(Self.speech, milliseconds: 600)
        ear.hear(Self.quiet, milliseconds: 1000)
        #expect(ear.machine.end == .sentence && ear.waitedMs == 200)
    }

    @Test("A pause within a sentence does not end it")
    func pause() {
        var ear = Ear()
        ear.hear(Self.quiet, milliseconds: 300)
        ear.hear(Self.speech, milliseconds: 600)
        ear.hear(Self.quiet, milliseconds: 1200)
        #expect(ear.machine.end == nil)
        ear.answer = Self.whole
        ear.hear(Self.speech, milliseconds: 600)
        #expect(ear.actions.contains { if case .resumed = $0 { true } else { false } })
        ear.hear(Self.quiet, milliseconds: 1000)
        #expect(ear.machine.end == .sentence && ear.waitedMs == 200)
    }

    @Test("An answer that is late delays the end, and one to an earlier pause has no effect")
    func late() {
        var ear = Ear(HearingLimits(), Self.whole, delay: 20)
        ear.hear(Self.quiet, milliseconds: 300)
        ear.hear(Self.speech, milliseconds: 600)
        ear.hear(Self.quiet, milliseconds: 300)
        // The answer comes within this stretch of speech.
        ear.hear(Self.speech, milliseconds: 300)
        #expect(ear.machine.end == nil)
        ear.hear(Self.quiet, milliseconds: 1000)
        // Asked at 100 ms of silence, answered 400 ms later.
        #expect(ear.machine.end == .sentence && ear.waitedMs == 500, "\(ear.actions)")
    }

    @Test("In steady noise, a whole sentence that no longer changes ends; otherwise the longest time does")
    func noise() {
        var ear = Ear(HearingLimits(), Self.whole)
        ear.hear(Self.quiet, milliseconds: 300)
        ear.hear(Self.speech, milliseconds: 9000)
        #expect(ear.machine.end == .steady && ear.endMs < 2500, "\(ear.endMs)")
        ear = Ear()
        ear.hear(Self.quiet, milliseconds: 300)
        ear.hear(Self.speech, milliseconds: 20_000)
        #expect(ear.machine.end == .tooLong && ear.endMs == 8000)
    }

    @Test("Nobody speaks, and a click is no speech")
    func nothing() {
        var ear = Ear()
        ear.hear(Self.quiet, milliseconds: 1000)
        ear.hear(Self.speech, milliseconds: 40)
        ear.hear(Self.quiet, milliseconds: 9000)
        #expect(ear.machine.end == .nothing && ear.endMs == 5000)
        var machine = HearingStateMachine(HearingLimits())
        var actions: [HearingStateMachine.Action] = []
        machine.microphoneEnded(&actions)
        #expect(actions == [.ended(.nothing, speechEnd: 0)])
    }

    @Test("The noise of a room is no speech, also where it becomes louder slowly")
    func floor() {
        var ear = Ear(HearingLimits(), Self.whole)
        for step in 0..<100 { ear.hear(3000 + UInt64(step) * 300, milliseconds: 20) }
        #expect(ear.machine.speechStart == nil)
        ear.hear(Self.speech, milliseconds: 600)
        ear.hear(33_000, milliseconds: 1500)
        #expect(ear.machine.end == .sentence && ear.waitedMs == 200, "\(ear.actions)")
    }

    @Test("Whatever is heard and answered, it ends once, in time, and asks nothing after it")
    func random() {
        var random = SeededRandom(seed: 11)
        for _ in 0..<3000 {
            var machine = HearingStateMachine(HearingLimits())
            var (asked, ended, last) = (0, 0, 0)
            var power: UInt64 = 100
            for _ in 0..<500 {
                var actions: [HearingStateMachine.Action] = []
                if Int.random(in: 0..<20, using: &random) == 0 {
                    power = [0, 100, 3000, 100_000, .max >> 34].randomElement(using: &random) ?? 0
                }
                switch Int.random(in: 0..<12, using: &random) {
                case 0:
                    machine.answered(
                        Int.random(in: 0...asked + 1, using: &random),
                        HearingStateMachine.Answer(
                            text: "a", isWhole: .random(using: &random), isBeginning: .random(using: &random)),
                        &actions)
                case 1 where Int.random(in: 0..<300, using: &random) == 0: machine.microphoneEnded(&actions)
                default: machine.heard(power: power, &actions)
                }
                #expect(ended == 0 || actions.isEmpty)
                for action in actions {
                    switch action {
                    case .began(let at): #expect(at == machine.now && machine.speechStart != nil)
                    case .ask(let number, let at, _):
                        #expect(number == last + 1 && at == machine.now)
                        (last, asked) = (number, number)
                    case .resumed: break
                    case .ended: ended += 1
                    }
                }
                #expect(machine.now <= 8_000_000 && machine.speechEnd <= machine.now)
                #expect((machine.end != nil) == (ended == 1))
            }
        }
    }
}
